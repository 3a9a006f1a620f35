"""A journal read for people: its turns, and what happened in each, the pieces of a text put together."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from trading_agent import json_lines
from trading_agent.conversation.journal_folder import usage_of
from trading_agent.conversation.records import (
    NO_RECORD,
    AnyRecord,
    CallFailed,
    Digested,
    MessageSaid,
    SessionHeader,
    TextCame,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
    decode_record,
)
from trading_agent.memory.damage import Damage
from trading_agent.messages import AssistantMessage, ToolResultMessage, Usage, UserMessage

What = Literal[
    'told', 'said', 'said_in_vain', 'asked', 'tool_called', 'tool_result', 'tool_failed', 'digested', 'backend_failed',
    'answered', 'failed', 'interrupted',
]  # fmt: skip
"""What can happen in a turn. What was said in vain is a text that no answer came of: the turn was cut off, or the
backend failed. A backend that acts by itself is asked: what it calls is not told."""


class Line(NamedTuple):
    """A record, and where it stands.

    Attributes:
        number: The line's number in the file, from 1; 0 where the file was read from its end.
        record: The record.
    """

    number: int
    record: AnyRecord


class Happening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a turn.

    Attributes:
        at: When, as an ISO 8601 string in UTC.
        what: What it was.
        line: The number of its last line in the journal; 0 where that is not known.
        text: What was told, said, given to a tool (as JSON) or given back by it, told in short, or went wrong.
        tool: The tool.
        call_id: The id of the call of a tool.
        backend: Who answered, was asked, or failed.
        error_type: The kind of failure.
        cause: By what a turn was interrupted.
        exchanges: How many exchanges are told in short from now on.
        usage: Tokens used, or None.
    """

    at: str
    what: What
    line: int = 0
    text: str = ''
    tool: str = ''
    call_id: str = ''
    backend: str = ''
    error_type: str = ''
    cause: str = ''
    exchanges: int = 0
    usage: Usage | None = None


class JournaledLines(msgspec.Struct, frozen=True):
    """A turn, or a question beside the session, with where its records stand; or messages that were saved alone.

    Attributes:
        lines: Its records in order, the first of which begins it where it is a turn.
    """

    lines: list[Line]

    @property
    def begun(self) -> TurnBegun | None:
        """Its first record; None for messages that were saved alone."""
        first = self.lines[0].record
        return first if isinstance(first, TurnBegun) else None

    @property
    def end(self) -> TurnEnded | TurnCut | None:
        """Its last record; None where it has none yet."""
        ends = (line.record for line in self.lines)
        return next((record for record in ends if isinstance(record, TurnEnded | TurnCut)), None)

    @property
    def usage(self) -> Usage:
        """Tokens used in it, by backends that failed too."""
        return sum((usage_of(line.record) for line in self.lines), Usage())

    @property
    def said(self) -> int:
        """How many characters had been said when it was cut off, by the backend that was speaking then."""
        characters = 0
        for line in self.lines:
            if isinstance(line.record, TextCame):
                characters += len(line.record.text)
            elif isinstance(line.record, CallFailed):
                characters = 0
        return characters

    def happenings(self) -> Iterator[Happening]:
        """Yields what happened, in order; each text once, however many pieces it came in."""
        return _Telling().of(self.lines)


def read_journal(path: Path, on_damage: Callable[[Damage], None]) -> Iterator[Line]:
    """Yields the records of a journal. A last line that is being written, or was never finished, is left out.

    Args:
        path: The file; a missing one has no records.
        on_damage: Is told of each line that is none.

    Raises:
        StorageError: It is there and cannot be read.
    """
    for number, (_, line) in enumerate(json_lines.read_whole(path), 1):
        if not line.strip():
            continue
        try:
            record = decode_record(line)
        except NO_RECORD as error:
            on_damage(Damage(path, number, f'{type(error).__name__}: {error}'[:500]))
            continue
        if not isinstance(record, SessionHeader):
            yield Line(number, record)


def last_turns(path: Path, count: int) -> list[Line]:
    """Returns the records of the last turns of a journal, read from its end; a line that is none is left out.

    Raises:
        StorageError: It is there and cannot be read.
    """
    found: list[Line] = []
    for line in json_lines.read_back(path):
        try:
            record = decode_record(line)
        except NO_RECORD:
            continue
        if not isinstance(record, SessionHeader):
            found.append(Line(0, record))
            count -= isinstance(record, TurnBegun)
        if count <= 0:
            break
    return found[::-1]


def turns_in(lines: Iterable[Line]) -> Iterator[JournaledLines]:
    """Yields the turns of a journal one by one, and what was saved between them."""
    held: list[Line] = []
    for line in lines:
        alone = not line.record.turn_id
        if held and (isinstance(line.record, TurnBegun) or alone != (not held[0].record.turn_id)):
            yield JournaledLines(held)
            held = []
        held.append(line)
    if held:
        yield JournaledLines(held)


class _Telling:
    """Puts the pieces of a turn's texts together: a whole message repeats the pieces that came before it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._told = ''
        self._last_piece: Line | None = None
        self._tools: dict[str, str] = {}

    def of(self, lines: Iterable[Line]) -> Iterator[Happening]:
        for line in lines:
            yield from self._happening(line)
        yield from self._text('said_in_vain')

    def _happening(self, line: Line) -> Iterator[Happening]:
        at, number = line.record.timestamp, line.number
        match line.record:
            case TextCame(text=text):
                self._pieces.append(text)
                self._last_piece = line
            case ToolRequested() as call:
                yield from self._text('said')
                yield self._requested(call, number)
            case Digested(text=text, exchanges=exchanges):
                yield Happening(at=at, line=number, what='digested', text=text, exchanges=exchanges)
            case MessageSaid(message=message):
                yield from self._message(message, at, number)
            case CallFailed(backend=backend, error_type=error_type, error=error, usage=usage):
                yield from self._text('said_in_vain')
                self._told = ''
                yield Happening(
                    at=at,
                    line=number,
                    what='backend_failed',
                    backend=backend,
                    error_type=error_type,
                    text=error,
                    usage=usage,
                )
            case TurnEnded(outcome=outcome, backend=backend, usage=usage):
                yield from self._text('said_in_vain')
                yield Happening(at=at, line=number, what=outcome, backend=backend, usage=usage)
            case TurnCut(cause=cause, backend=backend, usage=usage):
                yield from self._text('said_in_vain')
                yield Happening(at=at, line=number, what='interrupted', cause=cause, backend=backend, usage=usage)
            case _:
                pass

    def _requested(self, call: ToolRequested, line: int) -> Happening:
        self._tools[call.id] = call.name
        if call.id == call.turn_id:
            return Happening(at=call.timestamp, line=line, what='asked', backend=call.name)
        given = msgspec.json.encode(call.arguments).decode()
        return Happening(at=call.timestamp, line=line, what='tool_called', tool=call.name, call_id=call.id, text=given)

    def _text(self, what: Literal['said', 'said_in_vain']) -> Iterator[Happening]:
        """Yields the text that came in pieces, and that no whole message has repeated yet."""
        text, self._pieces = ''.join(self._pieces), []
        if text and self._last_piece is not None:
            self._told += text
            yield Happening(at=self._last_piece.record.timestamp, line=self._last_piece.number, what=what, text=text)

    def _message(
        self, message: UserMessage | AssistantMessage | ToolResultMessage, at: str, line: int
    ) -> Iterator[Happening]:
        match message:
            case UserMessage(content=content):
                yield Happening(at=at, line=line, what='told', text=content)
            case ToolResultMessage(tool_call_id=call_id, name=name, content=content, is_error=is_error):
                what: What = 'tool_failed' if is_error else 'tool_result'
                tool = name or self._tools.get(call_id, '')
                yield Happening(at=at, line=line, what=what, tool=tool, call_id=call_id, text=content)
            case AssistantMessage():
                if message.text and message.text != self._told:
                    yield Happening(at=at, line=line, what='said', text=message.text)
                self._pieces, self._told = [], ''
                for call in message.calls:
                    if call.id not in self._tools:
                        given = msgspec.json.encode(call.arguments).decode()
                        yield Happening(
                            at=at, line=line, what='tool_called', tool=call.name, call_id=call.id, text=given
                        )
