"""From the lines of a session's files to the rows of the index.

The same lines always become the same rows, however many of them are read at a time.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from trading_agent.clock import utc_text
from trading_agent.conversation.records import (
    NO_RECORD,
    CallFailed,
    MessageSaid,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
    decode_record,
)
from trading_agent.index.results import EXCHANGE_STEP
from trading_agent.memory.carry import message_in
from trading_agent.memory.exchange import NO_EXCHANGE, Exchange, decode_line
from trading_agent.messages import AssistantMessage, Message, Usage, UserMessage
from trading_agent.trigger import storable

Row = list[object]
FindTurns = Callable[[Collection[str]], Mapping[tuple[str, str], int]]
"""Given ids of triggers, returns the numbers of the turns that answered them and are shown, by trigger and start."""

_NUMBER, _TURN, _TRIGGER_ID, _PURPOSE, _ROLE, _SHOWN, _TEXT = 3, 5, 7, 8, 9, 14, 15
"""Where these stand in a row of messages."""

_LARGEST = (1 << 63) - 1
_PIECE, _PIECE_END = b'{"type":"text",', b'"}'
"""How a record of a piece of an answer begins and ends; where models stream, most records are such."""

_NOT_STORABLE = re.compile(rb'\\u(?:0000|[dD][89a-fA-F])')


@dataclass
class Turn:
    """A turn that has begun.

    Attributes:
        number: The number of its first line.
        turn_id: Its id.
        trigger_id: The trigger that it answers; empty for a question beside the session.
        purpose: `turn` or `review`.
        attempt: How often the trigger has been started.
        begun_at: When it began, as an ISO 8601 string in UTC.
        last_failure: The line of the last backend that failed; 0 for none.
        told: Whether it is known what the model was told.
        answered: Whether there is an answer since the last failure.
        earlier: Whether messages of it were written before.
    """

    number: int
    turn_id: str
    trigger_id: str
    purpose: str
    attempt: int
    begun_at: str
    last_failure: int = 0
    told: bool = False
    answered: bool = False
    earlier: bool = False


class SessionRows:
    """The rows of one session, as its lines are read: the journal's first, then those of its log of exchanges.

    Args:
        desk: The desk.
        session_id: The session.
        turn: The turn in whose middle the lines begin, or None.

    Attributes:
        key: The desk and the session.
        rows: The rows so far, by table. The first column of a message is its id, which whoever writes it fills in.
        shown_before: The turns whose messages are shown from now on although they were written before.
        damaged: How many lines could not be read.
    """

    def __init__(self, desk: str, session_id: str, turn: Turn | None = None) -> None:
        self.key = (desk, session_id)
        self._desk, self._session_id = desk, session_id
        self._date = session_id[:10]
        self._turn = turn
        self._messages_of_turn: list[Row] = []
        self.damaged = 0
        self.rows: dict[str, list[Row]] = {}
        self.shown_before: list[Turn] = []
        self.clear()

    def clear(self) -> None:
        """Forgets the rows so far: they were written. A turn that is running goes on."""
        self.rows = {'messages': [], 'turns': [], 'tool_calls': [], 'exchanges': [], 'usage': []}
        self.shown_before, self._messages_of_turn = [], []

    def finish(self) -> None:
        """Adds the row of the turn that is running, so that all rows can be written now."""
        if self._turn is not None:
            self._turn_row(self._turn, 'running')
            self._turn.earlier = True

    @property
    def in_turn(self) -> bool:
        """Whether a turn is running: what becomes of its rows is not settled yet."""
        return self._turn is not None

    def shown_texts(self) -> Iterator[tuple[object, object]]:
        """Yields the id and the text of each message that is shown."""
        return ((row[0], row[_TEXT]) for row in self.rows['messages'] if row[_SHOWN])

    # -- the journal -------------------------------------------------------------------------------------------

    def journal_line(self, number: int, line: bytes) -> None:
        """Reads one line of the journal.

        Args:
            number: Its number in the file, from 1.
            line: The line, without its newline.
        """
        if line.startswith(_PIECE) and line.endswith(_PIECE_END):
            return  # nothing of it is in the index: the whole answer follows
        try:
            record = decode_record(storable_line(line) if b'\\u' in line else line)
        except NO_RECORD:
            self.damaged += bool(line.strip())
            return
        if isinstance(record, MessageSaid):
            self._said(number, record)
        elif isinstance(record, TurnBegun):
            self._begun(number, record)
        elif isinstance(record, TurnEnded | TurnCut):
            self._ended(number, record)
        elif isinstance(record, ToolRequested):
            self._requested(number, record)
        elif isinstance(record, CallFailed):
            self._failed(number, record)

    def _begun(self, number: int, record: TurnBegun) -> None:
        if self._turn is not None:  # its end was never written, or cannot be read
            self._end(self._turn, 'interrupted')
        attempt = min(record.attempt, _LARGEST)
        self._turn = Turn(number, record.turn_id, record.trigger_id, record.purpose, attempt, record.timestamp)

    def _said(self, number: int, record: MessageSaid) -> None:
        message, turn = record.message, self._turn_of(record.turn_id)
        name, call_id, is_error = '', '', 0
        if isinstance(message, UserMessage):
            role, text = 'user', message_in(message.content)
        elif isinstance(message, AssistantMessage):
            role, name, text = 'assistant', message.model, message.text
        else:
            role, name, text = 'tool', message.name, message.content
            call_id, is_error = message.tool_call_id, int(message.is_error)
        text = _unless_blank(text)
        # What was saved alone holds at once; what belongs to a turn does so when that has its end.
        shown = int(bool(text) and not record.turn_id and self._turn is None)
        # fmt: off
        row: Row = [
            None, self._desk, self._session_id, number, self._date, None, record.turn_id, '', 'turn',
            role, name, call_id, is_error, record.timestamp or _time_of(message), shown, text,
        ]
        # fmt: on
        self.rows['messages'].append(row)
        if turn is not None:
            row[_TURN:_ROLE] = turn.number, turn.turn_id, turn.trigger_id, turn.purpose
            turn.told |= role == 'user'
            turn.answered |= role == 'assistant'
            self._messages_of_turn.append(row)

    def _requested(self, number: int, record: ToolRequested) -> None:
        turn = self._turn_of(record.turn_id)
        arguments = msgspec.json.encode(record.arguments).decode()
        call = [record.turn_id, record.id, record.name, int(record.read_only), arguments]
        place = turn.number if turn is not None else None
        self.rows['tool_calls'].append([*self.key, number, self._date, place, *call])

    def _failed(self, number: int, record: CallFailed) -> None:
        turn = self._turn_of(record.turn_id)
        self._use(number, turn, record.backend, record.usage)
        if turn is not None:
            turn.last_failure, turn.answered = number, False

    def _ended(self, number: int, record: TurnEnded | TurnCut) -> None:
        turn = self._turn_of(record.turn_id)
        self._use(number, turn, record.backend, record.usage)
        if turn is None:
            return
        if isinstance(record, TurnEnded):
            self._end(turn, record.outcome, ('', record.backend, record.started_at, record.timestamp))
        else:
            self._end(turn, 'interrupted', (record.cause, record.backend, '', record.timestamp))

    def _end(self, turn: Turn, outcome: str, last: tuple[str, str, str, str] = ('', '', '', '')) -> None:
        # An answered turn of which a part cannot be read is left to its exchange, which has the whole of it.
        whole = turn.told and turn.answered and turn.trigger_id
        holds = outcome == 'failed' or (outcome == 'answered' and whole)
        shown = bool(holds) and turn.purpose == 'turn'
        if shown:
            for row in self._messages_of_turn:
                number: int = row[_NUMBER]  # type: ignore[assignment] # columns are of several types
                row[_SHOWN] = int(bool(row[_TEXT]) and (row[_ROLE] == 'user' or number > turn.last_failure))
            if turn.earlier:
                self.shown_before.append(turn)
        self._turn_row(turn, outcome, last, shown=shown)
        self._turn, self._messages_of_turn = None, []

    def _turn_row(
        self, turn: Turn, outcome: str, last: tuple[str, str, str, str] = ('', '', '', ''), *, shown: bool = False
    ) -> None:
        cause, backend, started_at, ended_at = last
        # fmt: off
        self.rows['turns'].append([
            *self.key, turn.number, self._date, turn.turn_id, turn.trigger_id, turn.purpose, turn.attempt,
            outcome, cause, backend, turn.begun_at, started_at, ended_at, turn.last_failure, int(shown),
        ])
        # fmt: on

    def _turn_of(self, turn_id: str) -> Turn | None:
        """Returns the turn that a record belongs to; None where that turn's beginning cannot be read."""
        turn = self._turn
        return turn if turn is not None and turn_id and turn.turn_id == turn_id else None

    def _use(self, number: int, turn: Turn | None, backend: str, used: Usage | None) -> None:
        if used is not None and any(counts := msgspec.structs.astuple(used)):
            place, purpose = (turn.number, turn.purpose) if turn is not None else (None, 'turn')
            self.rows['usage'].append([*self.key, number, self._date, place, purpose, backend, *_within(counts)])

    # -- the log of exchanges ----------------------------------------------------------------------------------

    def exchange_lines(self, lines: Iterable[tuple[int, bytes]], turns: FindTurns) -> None:
        """Reads lines of the log.

        Args:
            lines: The lines, without their newlines, each with its number in the file, from 1.
            turns: Finds which of these exchanges have their turn in the journal, which was read before.
        """
        read: list[tuple[int, Exchange]] = []
        for number, line in lines:
            try:
                read.append((number, decode_line(storable_line(line) if b'\\u' in line else line)))
            except NO_EXCHANGE:
                self.damaged += bool(line.strip())
        found = turns({exchange.trigger_id for _, exchange in read if exchange.trigger_id})
        for number, exchange in read:
            trigger_id, started_at = exchange.trigger_id or '', exchange.started_at or ''
            turn = found.get((trigger_id, started_at)) if trigger_id else None
            ends = (exchange.backend_name, started_at, exchange.finished_at)
            self.rows['exchanges'].append([*self.key, number, self._date, turn, trigger_id, *ends])
            if turn is None:
                self._unjournaled(number, exchange, trigger_id)

    def _unjournaled(self, number: int, exchange: Exchange, trigger_id: str) -> None:
        """Makes the messages of an exchange whose turn is in no journal."""
        told, answered = 2 * number * EXCHANGE_STEP, (2 * number + 1) * EXCHANGE_STEP
        finished_at = exchange.finished_at
        for at, role, when, text in (
            (told, 'user', exchange.started_at or finished_at, message_in(exchange.trigger_text)),
            (answered, 'assistant', finished_at, exchange.answer),
        ):
            said = _unless_blank(text)
            # fmt: off
            self.rows['messages'].append([
                None, *self.key, at, self._date, None, '', trigger_id, 'turn',
                role, '', '', 0, when, int(bool(said)), said,
            ])
            # fmt: on
        counts = [(exchange.usage or {}).get(kind, 0) for kind in Usage.__struct_fields__]
        if any(counts):
            row: Row = [*self.key, answered, self._date, None, 'turn', exchange.backend_name, *_within(counts)]
            self.rows['usage'].append(row)


def storable_line(line: bytes) -> bytes:
    """Returns a line whose texts SQLite can take: a NUL, and half of a surrogate pair, become U+FFFD.

    Both can stand in a line as escapes only.
    """
    if not _NOT_STORABLE.search(line):
        return line
    try:
        return json.dumps(_storable(json.loads(line.decode('utf-8-sig'))), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return line  # it is no record either


def _storable(value: object) -> object:
    if isinstance(value, str):
        return storable(value).replace('\0', '\ufffd')
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {_storable(name): _storable(inner) for name, inner in value.items()}
    return value


def _unless_blank(text: str) -> str:
    return '' if text.isspace() else text


def _within(counts: Iterable[int]) -> list[int]:
    """Returns counts as SQLite takes them."""
    return [max(-_LARGEST, min(count, _LARGEST)) for count in counts]


def _time_of(message: Message) -> str:
    try:
        return utc_text(datetime.fromtimestamp(message.timestamp, UTC)) if message.timestamp else ''
    except (ValueError, OverflowError, OSError):
        return ''
