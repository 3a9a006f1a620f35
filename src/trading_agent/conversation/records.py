"""The lines of a journal: a header, then numbered records, each carrying the digest of the line before it.

A file written by the first reader of this layout has records of the type `message` alone, without numbers.
"""

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from trading_agent import json_lines
from trading_agent.messages import Message, Usage, message_from

FORMAT_VERSION = '2.0'
"""Version 1 had no numbers and no digests."""

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A count that whoever writes the next one can add to: a larger one is damage."""

Purpose = Literal['turn', 'review']
Cause = Literal['crash', 'stop', 'restart', 'pause', 'cancelled', 'no_backend', 'dropped', 'unknown']


class SessionHeader(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field='type', tag='session_header'
):
    """The first line of a file.

    Attributes:
        session_id: The session.
        created_at: When the file was begun, as an ISO 8601 string in UTC.
        version: The format.
        desk: The desk, where it is a desk's journal.
        previous_session_id: The desk's session before, where there was one.
        previous_digest: The digest of the last line of that session's journal.
    """

    session_id: str
    created_at: str
    version: str = msgspec.field(default_factory=lambda: FORMAT_VERSION)
    desk: str = ''
    previous_session_id: str = ''
    previous_digest: str = ''


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field='type'):
    """What every line after the header carries. The journal fills these in as it writes.

    Attributes:
        number: The record's number in its file, from 1; 0 in a file of version 1.
        previous: The digest of the line before.
        timestamp: When it was written, as an ISO 8601 string in UTC.
        turn_id: The turn that it belongs to; empty for a message that was saved alone.
    """

    number: Number = 0
    previous: str = ''
    timestamp: str = ''
    turn_id: str = ''


class TurnBegun(Record, frozen=True, kw_only=True, tag='turn_started'):
    """A turn, or a question beside the session, begins: what the model is told follows as a message.

    Attributes:
        purpose: `turn`, or `review` for a question beside the session.
        trigger_id: The trigger that is answered, the first one where several were gathered; empty for a question.
        attempt: How often the trigger has been started, this time included.
        instructions: The digest of AGENTS.md as the turn saw it; empty where there is none.
        memory: The digest of Memory.md, likewise.
        tools: The digest of the tools that it could call, likewise.
        trigger_ids: The ids of all triggers that were gathered into it, in order; empty where it is one.
    """

    purpose: Purpose
    trigger_id: str = ''
    attempt: Number = 1
    instructions: str = ''
    memory: str = ''
    tools: str = ''
    trigger_ids: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the triggers that are answered; empty for a question."""
        return self.trigger_ids or ((self.trigger_id,) if self.trigger_id else ())


class MessageSaid(Record, frozen=True, kw_only=True, tag='message'):
    """A whole message: of the user, of the model, or what a tool gave back."""

    message: Message


class TextCame(Record, frozen=True, kw_only=True, tag='text'):
    """A piece of an answer; the whole of it follows as a message, unless the turn is cut off."""

    text: str


class ToolRequested(Record, frozen=True, kw_only=True, tag='tool_call'):
    """The model wants a tool to be called; written before it is.

    Attributes:
        id: The call's id.
        name: The tool; or a backend that acts by itself, whose whole turn counts as one call.
        arguments: What the tool is given, by name.
        read_only: Whether the call has no effects. One that may have some is on the disk before it is made.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    read_only: bool = False


class Digested(Record, frozen=True, kw_only=True, tag='digest'):
    """The oldest exchanges no longer fit into a model's context, and are told in short from now on.

    Attributes:
        text: The digest.
        exchanges: How many exchanges are folded, from the session's first on.
        by_model: Whether a model wrote it.
    """

    text: str
    exchanges: Number
    by_model: bool = True


class CallFailed(Record, frozen=True, kw_only=True, tag='error'):
    """A backend could not answer; what it has said of this turn so far counts for nothing.

    Attributes:
        backend: Who was asked.
        error_type: The kind of failure.
        error: What went wrong.
        usage: Tokens that were used all the same, or None.
        without_effects: Whether it is known that the backend called no tool that may have effects.
    """

    backend: str = ''
    error_type: str = ''
    error: str = ''
    usage: Usage | None = None
    without_effects: bool = False


class TurnEnded(Record, frozen=True, kw_only=True, tag='turn_finished'):
    """A turn has its end: from here on it is not run again.

    Attributes:
        outcome: `answered`, or `failed` where no backend could ever answer it.
        backend: Who answered; empty for a failed turn.
        started_at: When the turn began, as an ISO 8601 string in UTC.
        finished_at: When it was answered, likewise.
        usage: Tokens used by the backend that answered, or None where it counted none.
    """

    outcome: Literal['answered', 'failed']
    backend: str = ''
    started_at: str = ''
    finished_at: str = ''
    usage: Usage | None = None


class TurnCut(Record, frozen=True, kw_only=True, tag='turn_interrupted'):
    """A turn ended without an answer.

    Attributes:
        cause: By what; `unknown` where it failed after calls that may have had effects.
        backend: Who was being asked.
        usage: Tokens that were used all the same, or None.
    """

    cause: Cause
    backend: str = ''
    usage: Usage | None = None


AnyRecord = TurnBegun | MessageSaid | TextCame | ToolRequested | Digested | CallFailed | TurnEnded | TurnCut
AnyLine = SessionHeader | AnyRecord

_DECODER = msgspec.json.Decoder(AnyLine)
_DIGEST_BYTES = 16
NO_RECORD = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""What `decode_record` raises for a line that is none."""


def digest_of(line: bytes) -> str:
    """Returns the digest of a line without its newline, in hexadecimal."""
    return blake2b(line, digest_size=_DIGEST_BYTES).hexdigest()


class _Place(msgspec.Struct, frozen=True):
    number: Number = 0
    previous: str = ''
    turn_id: str = ''


def decode_record(line: bytes) -> AnyLine:
    """Reads one line of a journal, also as other programs write it.

    Raises:
        NO_RECORD: One of these: it is none of the known records.
    """
    try:
        record: AnyLine = _DECODER.decode(line)
    except (ValueError, RecursionError):
        data = json.loads(line.decode('utf-8-sig'))
        if data.get('type') != 'message':
            other: AnyLine = msgspec.convert(data, AnyLine, strict=False)
            return other
        place = msgspec.convert(data, _Place, strict=False)
        timestamp = str(data.get('timestamp', ''))
        return MessageSaid(**msgspec.structs.asdict(place), timestamp=timestamp, message=message_from(data['message']))
    return record


def records(path: Path) -> Iterator[AnyLine]:
    """Yields the header and the records of a journal; a line that is none is left out.

    Raises:
        StorageError: It is there and cannot be read.
    """
    for _, line in json_lines.read(path):
        try:
            yield decode_record(line)
        except NO_RECORD:
            continue


def messages_in(lines: Iterable[AnyLine]) -> list[Message]:
    """Returns what was said and holds: messages saved alone, and those of turns that were answered.

    What was said in a turn that was cut off, that failed, or beside the session, is left out.
    """
    said: list[Message] = []
    held: list[Message] = []
    counts = True
    for line in lines:
        match line:
            case MessageSaid(turn_id='', message=message):
                said.append(message)
            case MessageSaid(message=message):
                held.append(message)
            case TurnBegun(purpose=purpose):
                held, counts = [], purpose == 'turn'
            case CallFailed():
                # What a backend said before it failed is void; what it was told is not.
                held = held[:1]
            case TurnEnded(outcome=outcome):
                said += held if counts and outcome == 'answered' else []
                held = []
            case TurnCut():
                held = []
            case _:
                pass
    return said
