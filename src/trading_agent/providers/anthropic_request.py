"""A request as Anthropic's Messages API takes it."""

from collections.abc import Sequence
from typing import Any, Literal

from trading_agent.errors import TurnRefused
from trading_agent.messages import AssistantMessage, Message, TextContent, ToolCall, ToolResultMessage, UserMessage
from trading_agent.providers.outgoing import call_id, schema_instruction, tool_name
from trading_agent.providers.provider import ModelRequest
from trading_agent.trigger import storable

CacheTtl = Literal['5m', '1h']
Block = dict[str, Any]

_LEFT_OUT = '(What was said before is left out here.)'


def params_of(request: ModelRequest, model: str, max_tokens: int, cache_ttl: CacheTtl) -> dict[str, Any]:
    """Returns a request as parameters of `messages.create`, all but the output format.

    At most four places are marked to be cached: the tools, what stands above the conversation, the end of the
    conversation, and its end as it was in the request before, where the cache has it.

    Args:
        request: The request.
        model: The model, where the request names none.
        max_tokens: The longest answer, in tokens, where the request does not say; this API wants to know.
        cache_ttl: How long what is cached is kept from its last use on.

    Raises:
        TurnRefused: There is nothing to answer.
    """
    cached = {'type': 'ephemeral', **({'ttl': cache_ttl} if cache_ttl != '5m' else {})}
    turns = _turns(request.messages)
    _mark(turns, cached)
    params: dict[str, Any] = {
        'model': request.model or model,
        'max_tokens': request.max_tokens or max_tokens,
        'messages': turns,
    }
    system = _text_blocks(request.system or '')
    if system:
        system[-1]['cache_control'] = cached
    if request.schema is not None:
        system += _text_blocks(schema_instruction(request.schema))
    if system:
        params['system'] = system
    if tools := _tools(request):
        tools[-1]['cache_control'] = cached
        params['tools'] = tools
        if not request.tools:
            params['tool_choice'] = {'type': 'none'}
    if request.temperature is not None:
        params['temperature'] = request.temperature
    user_id = request.metadata.get('user_id')
    if isinstance(user_id, str) and user_id:
        params['metadata'] = {'user_id': user_id[:256]}
    return params


def is_closed(schema: object) -> bool:
    """Whether every object of a schema names all of its fields: the API's output format can say nothing else."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get('type') == 'object' and (not schema.get('properties') or schema.get('additionalProperties')):
        return False
    return all(map(is_closed, schema.values()))


def _tools(request: ModelRequest) -> list[Block]:
    tools: list[Block] = [
        {
            'name': tool.name,
            **({'description': storable(tool.description)} if tool.description else {}),
            'input_schema': {'type': 'object', **tool.parameters},
        }
        for tool in request.tools
    ]
    if tools:
        return tools
    # A conversation in which tools were called is refused without any.
    called = [call.name for said in request.messages if isinstance(said, AssistantMessage) for call in said.calls]
    return [{'name': name, 'input_schema': {'type': 'object'}} for name in dict.fromkeys(map(tool_name, called))]


def _turns(messages: Sequence[Message]) -> list[Block]:
    """Returns the conversation as turns that alternate, the first one a user's."""
    turns: list[Block] = []
    for message in messages:
        role = 'assistant' if isinstance(message, AssistantMessage) else 'user'
        blocks = _blocks(message)
        if not blocks:
            continue
        if not turns and role == 'assistant':
            turns.append({'role': 'user', 'content': _text_blocks(_LEFT_OUT)})
        if turns and turns[-1]['role'] == role:
            turns[-1]['content'] += blocks
        else:
            turns.append({'role': role, 'content': blocks})
    if not turns or turns[-1]['role'] != 'user':
        raise TurnRefused('there is no message to answer')
    return turns


def _blocks(message: Message) -> list[Block]:
    match message:
        case UserMessage():
            return _text_blocks(message.content)
        case ToolResultMessage():
            content = _text_blocks(message.content)
            return [
                {
                    'type': 'tool_result',
                    'tool_use_id': call_id(message.tool_call_id),
                    **({'content': content} if content else {}),
                    **({'is_error': True} if message.is_error else {}),
                }
            ]
    parts = [TextContent(message.content)] if isinstance(message.content, str) else message.content
    blocks: list[Block] = []
    told: set[str] = set()
    for part in [*parts, *message.calls]:
        if isinstance(part, TextContent):
            blocks += _text_blocks(part.text)
        elif part.id not in told:
            told.add(part.id)
            blocks.append(_tool_use(part))
    return blocks


def _tool_use(call: ToolCall) -> Block:
    return {'type': 'tool_use', 'id': call_id(call.id), 'name': tool_name(call.name), 'input': call.arguments}


def _text_blocks(text: str) -> list[Block]:
    """Returns a text as blocks: none where it is blank, which the API refuses."""
    return [] if not text or text.isspace() else [{'type': 'text', 'text': storable(text)}]


def _mark(turns: list[Block], cached: Block) -> None:
    """Marks the end of the conversation, and its end in the request before: the user's turn before the last answer."""
    for turn in (turns[-1], *turns[-3:-2]):
        turn['content'][-1]['cache_control'] = cached
