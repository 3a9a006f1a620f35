"""What the `claude` command writes in one turn (`--output-format stream-json`), line by line, as events of the turn.

What is not known is let pass: the command gains kinds of lines and fields with its versions.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from trading_agent.memory.rollover import clipped
from trading_agent.messages import Usage
from trading_agent.trigger import storable
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnAnswered, TurnEvent, UsageCounted

LONGEST_TOOL_RESULT = 1 << 16
"""In characters: of a longer result the beginning is told."""

_BY_THE_COMMAND = '<synthetic>'
"""The model's name in messages that the command itself wrote."""

_ANSWER_TOOL = 'StructuredOutput'
"""The tool by which a model gives an answer that has a schema: no tool of the desk's."""

Fields = dict[str, Any]


def decode(line: bytes | bytearray) -> Fields | None:
    """Returns what a line says, or None where it is no JSON object."""
    value: object
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = json.loads(line.decode('utf-8', 'replace'))  # a lone surrogate, written as an escape
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Result:
    """The last line of a turn.

    Attributes:
        is_error: Whether the turn failed.
        text: The last message of the answer, or what went wrong.
        kind: What kind of failure it is, in the command's word or the API's; may be empty.
        status: The API's HTTP status, where it refused; else None.
        stop_reason: Why the model stopped, or None.
        data: The answer's fields, where a schema was asked for; else None.
    """

    is_error: bool
    text: str
    kind: str
    status: int | None
    stop_reason: str | None
    data: object


class ClaudeStream:
    """Reads one turn.

    Attributes:
        version: The command's version, such as `2.1.332`; empty until it has said it.
        session_id: The session's id, in the command's own words.
        message_id: The last message of the model: where to resume.
        model: The model that answered.
        has_begun: Whether the model has begun to answer.
        limited_until: Until when a subscription's limit holds, in Unix time, or None.
        result: The last line, once it has come.
    """

    def __init__(self) -> None:
        self.version = ''
        self.session_id = ''
        self.message_id = ''
        self.model = ''
        self.has_begun = False
        self.limited_until: float | None = None
        self.result: Result | None = None
        self._texts: list[str] = []
        self._streamed: set[str] = set()
        self._counted = Usage()
        self._error = ''

    def take(self, fields: Fields) -> Iterator[TurnEvent]:
        """Reads one line, and yields what it tells."""
        inside = _text(fields, 'parent_tool_use_id') != ''
        match fields.get('type'):
            case 'system' if fields.get('subtype') == 'init':
                self.version = _text(fields, 'claude_code_version')
                self.session_id = _text(fields, 'session_id')
            case 'stream_event' if not inside:
                yield from self._piece(_fields(fields, 'event'))
            case 'assistant' if _fields(fields, 'message').get('model') == _BY_THE_COMMAND:
                self._error = _text(fields, 'error')
            case 'assistant':
                message = _fields(fields, 'message')
                if not inside:
                    self.has_begun = True
                    self.model = _text(message, 'model')
                    self.message_id = _text(fields, 'uuid')
                yield from self._message(message, inside=inside)
            case 'user':
                for block in _blocks(_fields(fields, 'message')):
                    yield from self._tool_result(block)
            case 'rate_limit_event':
                self._limit(_fields(fields, 'rate_limit_info'))
            case 'result':
                yield from self._end(fields)
            case _:
                pass

    def answered(self, *, schema: bool) -> TurnAnswered:
        """Returns the answer: what the model said since its last call of a tool; without the runner's state.

        Args:
            schema: Whether one was asked for.
        """
        result = self.result
        assert result is not None  # noqa: S101 - it has ended well
        if schema and result.data is not None:
            answer = msgspec.json.encode(result.data).decode()
        else:
            answer = ('' if schema else ''.join(self._texts)) or result.text
        return TurnAnswered(answer, model=self.model, stop_reason=result.stop_reason)

    def _piece(self, event: Fields) -> Iterator[TurnEvent]:
        match event.get('type'):
            case 'message_start':
                message = _fields(event, 'message')
                self.has_begun = True
                self._streamed.add(_text(message, 'id'))
                usage = _usage(_fields(message, 'usage'))
                yield from self._count(msgspec.structs.replace(usage, output_tokens=0))
            case 'content_block_delta':
                delta = _fields(event, 'delta')
                text = _text(delta, 'text') if delta.get('type') == 'text_delta' else ''
                yield TextPiece(text) if text else UsageCounted()  # thinking is a sign of life, and tells nothing
            case 'message_delta':
                yield from self._count(Usage(output_tokens=_usage(_fields(event, 'usage')).output_tokens))
            case _:
                pass

    def _message(self, message: Fields, *, inside: bool) -> Iterator[TurnEvent]:
        for block in _blocks(message):
            match block.get('type'):
                case 'text' if not inside and (text := _text(block, 'text')):
                    self._texts.append(text)
                    if _text(message, 'id') not in self._streamed:
                        yield TextPiece(text)
                case 'tool_use' | 'server_tool_use' if block.get('name') != _ANSWER_TOOL:
                    self._texts = [] if not inside else self._texts
                    yield ToolCalled(_text(block, 'id'), _text(block, 'name'), _fields(block, 'input'))
                case _:
                    yield from self._tool_result(block)

    def _tool_result(self, block: Fields) -> Iterator[TurnEvent]:
        call_id = _text(block, 'tool_use_id')
        if call_id and str(block.get('type')).endswith('tool_result'):
            told = clipped(_told(block.get('content')), LONGEST_TOOL_RESULT)
            yield ToolReturned(call_id, told, is_error=block.get('is_error') is True)

    def _limit(self, info: Fields) -> None:
        until = info.get('resetsAt')
        if info.get('status') == 'rejected' and isinstance(until, int | float):
            self.limited_until = float(until)

    def _end(self, fields: Fields) -> Iterator[TurnEvent]:
        errors = fields.get('errors')
        told = [error for error in errors if isinstance(error, str)] if isinstance(errors, list) else []
        kinds = [_text(fields, 'terminal_reason'), _text(fields, 'api_error_type'), _text(fields, 'api_error')]
        kinds += [self._error, _text(fields, 'subtype').replace('success', '')]  # it says so of failures too
        status = fields.get('api_error_status')
        self.session_id = _text(fields, 'session_id') or self.session_id
        self.result = Result(
            is_error=fields.get('is_error') is True,
            text=_text(fields, 'result') or '; '.join(told),
            kind=' '.join(dict.fromkeys(kind for kind in kinds if kind)),
            status=status if isinstance(status, int) else None,
            stop_reason=_text(fields, 'stop_reason') or None,
            data=fields.get('structured_output'),
        )
        yield from self._count(_minus(_usage(_fields(fields, 'usage')), self._counted))

    def _count(self, usage: Usage) -> Iterator[TurnEvent]:
        if usage:
            self._counted += usage
            yield UsageCounted(*msgspec.structs.astuple(usage))


def _text(fields: Fields, name: str) -> str:
    value = fields.get(name)
    return storable(value) if isinstance(value, str) else ''


def _fields(fields: Fields, name: str) -> Fields:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _blocks(message: Fields) -> list[Fields]:
    content = message.get('content')
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _told(content: object) -> str:
    """Returns what a tool gave back as text; what is none, such as a picture, is named."""
    if isinstance(content, str):
        return storable(content)
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return '\n'.join(_text(part, 'text') or f'[{part.get("type")}]' for part in parts)


def _usage(fields: Fields) -> Usage:
    names = ('input_tokens', 'output_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens')
    counts = [fields.get(name) for name in names]
    return Usage(*(count if isinstance(count, int) and count > 0 else 0 for count in counts))


def _minus(whole: Usage, counted: Usage) -> Usage:
    pairs = zip(msgspec.structs.astuple(whole), msgspec.structs.astuple(counted), strict=True)
    return Usage(*(max(0, count - known) for count, known in pairs))
