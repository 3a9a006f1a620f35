"""A request as the Chat Completions API of OpenAI takes it, and the many servers that speak it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from trading_agent.errors import TurnRefused
from trading_agent.messages import AssistantMessage, Message, ToolResultMessage, UserMessage
from trading_agent.providers.outgoing import call_id, schema_instruction, tool_name
from trading_agent.providers.provider import ModelRequest
from trading_agent.trigger import storable

_LONGEST_METADATA = 256  # characters


def params_of(request: ModelRequest, model: str, max_tokens: int | None, limit: str) -> dict[str, Any]:
    """Returns a request as parameters of `chat.completions.create`.

    Args:
        request: The request.
        model: The model, where the request names none.
        max_tokens: The longest answer, in tokens, where the request does not say; None for the server's own limit.
        limit: How the server calls that parameter.

    Raises:
        TurnRefused: There is nothing to answer.
    """
    params: dict[str, Any] = {
        'model': request.model or model,
        'messages': _system(request) + _turns(request.messages),
        'stream_options': {'include_usage': True},
    }
    if request.max_tokens or max_tokens:
        params[limit] = request.max_tokens or max_tokens
    if request.tools:
        params['tools'] = [
            {
                'type': 'function',
                'function': {
                    'name': tool.name,
                    **({'description': storable(tool.description)} if tool.description else {}),
                    'parameters': {'type': 'object', **tool.parameters},
                },
            }
            for tool in request.tools
        ]
    if request.schema is not None:
        # Not strict: that takes only some schemas, and whoever asked checks the answer.
        params['response_format'] = {
            'type': 'json_schema',
            'json_schema': {'name': 'answer', 'schema': request.schema, 'strict': False},
        }
    if request.temperature is not None:
        params['temperature'] = request.temperature
    user_id = request.metadata.get('user_id')
    if isinstance(user_id, str) and user_id:
        params['user'] = user_id[:_LONGEST_METADATA]
    return params


def _system(request: ModelRequest) -> list[dict[str, Any]]:
    parts = [] if _is_blank(request.system) else [storable(request.system or '')]
    if request.schema is not None:
        parts.append(schema_instruction(request.schema))
    return [{'role': 'system', 'content': '\n\n'.join(parts)}] if parts else []


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns the conversation, what one side said twice in a row as one: many models want the two to alternate."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn = _turn(message)
        last = turns[-1] if turns else {}
        if turn is None:
            continue
        plain = 'tool_calls' not in last and turn['role'] in ('user', 'assistant')
        if plain and last.get('role') == turn['role']:
            turns[-1] = {**turn, 'content': '\n\n'.join(filter(None, [last['content'], turn['content']]))}
        else:
            turns.append(turn)
    if not turns or turns[-1]['role'] == 'assistant':
        raise TurnRefused('there is no message to answer')
    return turns


def _turn(message: Message) -> dict[str, Any] | None:
    match message:
        case UserMessage():
            return None if _is_blank(message.content) else {'role': 'user', 'content': storable(message.content)}
        case ToolResultMessage():
            mark = 'Error: ' if message.is_error else ''  # this API knows no other
            content = mark + storable(message.content)
            return {'role': 'tool', 'tool_call_id': call_id(message.tool_call_id), 'content': content}
        case AssistantMessage():
            text = None if _is_blank(message.text) else storable(message.text)
            calls = [_call(call.id, call.name, call.arguments) for call in message.calls]
            if calls:
                return {'role': 'assistant', 'content': text, 'tool_calls': calls}
            return None if text is None else {'role': 'assistant', 'content': text}


def _call(own_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    written = storable(msgspec.json.encode(arguments).decode())
    return {'id': call_id(own_id), 'type': 'function', 'function': {'name': tool_name(name), 'arguments': written}}


def _is_blank(text: str | None) -> bool:
    return not text or text.isspace()
