"""A desk's journals: one file a session, each beginning where the one before ended."""

from collections.abc import Callable, Container
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from trading_agent import files, json_lines
from trading_agent.clock import utc_text
from trading_agent.conversation.holes import hole_in
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.records import (
    NO_RECORD,
    AnyLine,
    AnyRecord,
    CallFailed,
    MessageSaid,
    SessionHeader,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
    decode_record,
)
from trading_agent.memory.damage import Damage, DamageReport, keep_aside
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import split_session_id
from trading_agent.messages import AssistantMessage, Usage, UserMessage

_USAGE_KEY = b'"usage":{'
_BEGUN_KEY = b'"turn_started"'


class _AnyRecord(msgspec.Struct, frozen=True):
    type: str


_ANY_RECORD = msgspec.json.Decoder(_AnyRecord)


class JournaledTurn(msgspec.Struct, frozen=True):
    """A turn, or a question beside the session, as a journal has it.

    Attributes:
        begun: Its first record.
        said: What was said in it, tool calls and failures too.
        end: Its last record, or None for one that has none yet.
    """

    begun: TurnBegun
    said: list[AnyRecord]
    end: TurnEnded | TurnCut | None

    @property
    def told(self) -> str:
        """What the model was told."""
        first = next((record.message for record in self.said if isinstance(record, MessageSaid)), None)
        return first.content if isinstance(first, UserMessage) else ''

    @property
    def answer(self) -> str | None:
        """What was answered in the end; None where nothing was."""
        if not isinstance(self.end, TurnEnded) or self.end.outcome != 'answered':
            return None
        answers = (record.message for record in reversed(self.said) if isinstance(record, MessageSaid))
        return next((message.text for message in answers if isinstance(message, AssistantMessage)), None)

    @property
    def effects(self) -> list[ToolRequested]:
        """The calls in it that may have had effects."""
        made: list[ToolRequested] = []
        begun = 0
        for record in self.said:
            if isinstance(record, ToolRequested) and not record.read_only:
                made.append(record)
            elif isinstance(record, CallFailed):
                made = made[:begun] if record.without_effects else made
                begun = len(made)
        return made

    def exchange(self) -> Exchange | None:
        """Returns the exchange that this turn is; None where it is none."""
        answer = self.answer
        if answer is None or self.begun.purpose != 'turn' or not isinstance(self.end, TurnEnded):
            return None
        return Exchange(
            trigger_text=self.told,
            answer=answer,
            backend_name=self.end.backend,
            finished_at=self.end.finished_at or self.end.timestamp,
            trigger_id=self.begun.trigger_id or None,
            started_at=self.end.started_at or None,
            usage=usage_counts(self.end.usage),
            trigger_ids=self.begun.trigger_ids,
        )


def _is_whole(line: bytes) -> bool:
    """Whether a line is some record, as far as can be told without reading all of it."""
    try:
        _ANY_RECORD.decode(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _turn_of(lines: list[AnyLine]) -> JournaledTurn:
    """Returns the turn that these lines of a journal are; the first one begins it."""
    begun, *following = (line for line in lines if not isinstance(line, SessionHeader))
    assert isinstance(begun, TurnBegun)  # noqa: S101 - the callers see to it
    ends = [line for line in following if isinstance(line, TurnEnded | TurnCut)]
    said: list[AnyRecord] = [line for line in following if not isinstance(line, TurnEnded | TurnCut)]
    return JournaledTurn(begun, said, ends[-1] if ends else None)


class UsageTotals(msgspec.Struct):
    """Tokens used by a desk.

    Attributes:
        session: In the current session: by turns, by those that came to nothing, and beside it.
        day: In all sessions of its trading date.
        day_of_backend: The same by backend.
    """

    session: Usage = Usage()
    day: Usage = Usage()
    day_of_backend: dict[str, Usage] = {}

    def count(self, backend: str, used: Usage) -> None:
        """Adds tokens that a backend used."""
        self.session, self.day = self.session + used, self.day + used
        self.day_of_backend[backend] = self.day_of_backend.get(backend, Usage()) + used


def usage_counts(usage: Usage | None) -> dict[str, int] | None:
    """Returns the kinds of tokens of which there were any, or None where there were none."""
    return msgspec.to_builtins(usage) if usage else None


class JournalFolder:
    """One desk's journals. All methods block on the disk.

    Args:
        directory: The desk's `journal` folder, made when the first file is.
        desk: The desk's name.
        now: What time it is.
        on_damage: Is told of each damaged line once, from the thread that read it; None for nobody.
    """

    def __init__(
        self,
        directory: Path,
        desk: str,
        now: Callable[[], datetime],
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self.directory = directory
        self._desk = desk
        self._now = now
        self._damage = DamageReport(on_damage or _nobody)

    def path(self, session_id: str) -> Path:
        """Returns the file of a session's journal.

        Raises:
            InvalidSessionId: The id is none.
        """
        split_session_id(session_id)
        return self.directory / f'{session_id}.jsonl'

    def open(self, session_id: str, previous: Journal | None = None) -> Journal:
        """Opens a session's journal, its torn tail sealed; begins it where there is none.

        Args:
            session_id: The session.
            previous: The journal of the session before, whose last digest goes into a new one's header.

        Raises:
            StorageError: It cannot be read, or not created.
            DeskUnusable: A newer version of the program wrote it.
        """
        path = self.path(session_id)
        with files.storage_errors('look at', path):
            is_there = path.exists()
        if is_there:
            self.mend(session_id)
            files.seal(path)
            return Journal(path, self._now)
        header = SessionHeader(
            session_id=session_id,
            created_at=utc_text(self._now()),
            desk=self._desk,
            previous_session_id=previous.path.name.removesuffix('.jsonl') if previous else '',
            previous_digest=previous.close() if previous else '',
        )
        return Journal.begin(path, header, self._now)

    def mend(self, session_id: str) -> None:
        """Takes out what hangs in the air behind a power cut's hole; call it before a start reads the journal.

        The journal as it was is kept beside it, and that is told: a turn's end whose answer is gone must not count.

        Raises:
            StorageError: It cannot be read or written.
        """
        path = self.path(session_id)
        found = hole_in(path)
        if found is None:
            return
        number, begin = found
        aside = keep_aside(path)
        # First, for after a crash behind the next line nobody would tell it.
        what = f'records from before a power cut are missing; those behind them are in {aside.name}'
        self._damage.tell(path, number, what)
        files.replace(path, (files.read(path) or b'')[:begin])

    def last_turn(self, session_id: str) -> JournaledTurn | None:
        """Returns the last turn of a session, read from the end of its journal; None where there is none.

        Raises:
            StorageError: The journal cannot be read.
        """
        lines: list[AnyLine] = []
        for line in json_lines.read_back(self.path(session_id)):
            with suppress(*NO_RECORD):
                lines.append(decode_record(line))
                if isinstance(lines[-1], TurnBegun):
                    return _turn_of(lines[::-1])
        return None

    def turns_of(self, session_id: str, triggers: Container[str]) -> list[JournaledTurn]:
        """Returns the turns of a session that answer one of these triggers or tried to, oldest first.

        Raises:
            StorageError: The journal cannot be read.
        """
        found: list[list[AnyLine]] = []
        wanted = False
        for _, line in json_lines.read(self.path(session_id)):
            # The other turns, which are nearly all, are not decoded.
            if not wanted and _BEGUN_KEY not in line:
                continue
            with suppress(*NO_RECORD):
                record = decode_record(line)
                if isinstance(record, TurnBegun):
                    wanted = any(trigger_id in triggers for trigger_id in record.answers)
                    found += [[]] if wanted else []
                if wanted:
                    found[-1].append(record)
        return [_turn_of(lines) for lines in found]

    def usage(self, session_id: str) -> Usage:
        """Returns the tokens used in a session: by turns, by those that came to nothing, and beside it.

        Raises:
            StorageError: The journal cannot be read.
        """
        return sum(self.usage_by_backend(session_id).values(), Usage())

    def usage_by_backend(self, session_id: str) -> dict[str, Usage]:
        """Returns the tokens that each backend used in a session. A damaged line is skipped and told.

        Raises:
            StorageError: The journal cannot be read.
        """
        used: dict[str, Usage] = {}
        path = self.path(session_id)
        for number, line in json_lines.read(path):
            try:
                if _USAGE_KEY not in line and _is_whole(line):
                    continue
                record = decode_record(line)
            except NO_RECORD as error:
                self._damage.tell(path, number, error)
                continue
            backend = record.backend if isinstance(record, TurnEnded | TurnCut | CallFailed) else ''
            used[backend] = used.get(backend, Usage()) + usage_of(record)
        return used


def _nobody(_: Damage) -> None:
    pass


def usage_of(record: AnyLine) -> Usage:
    """Returns the tokens that a record counts towards its session; those of a message count with its turn's end."""
    return (record.usage if isinstance(record, TurnEnded | TurnCut | CallFailed) else None) or Usage()
