"""A desk's journals: each as its chain of digests has it, and each beginning where the one before ended."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import FileIO
from typing import NamedTuple

from trading_agent.audit.findings import FileReport
from trading_agent.audit.reader import Reader, split
from trading_agent.conversation.chain import Chain, chain_line
from trading_agent.conversation.journal_folder import usage_counts
from trading_agent.conversation.records import (
    FORMAT_VERSION,
    NO_RECORD,
    AnyRecord,
    MessageSaid,
    SessionHeader,
    TurnBegun,
    TurnCut,
    TurnEnded,
    decode_record,
)
from trading_agent.memory.session_state import is_session_id, split_session_id
from trading_agent.messages import AssistantMessage, UserMessage

_HEADER_BYTES = 1 << 12


class Gist(NamedTuple):
    """What an exchange says, as hashes, so that two can be compared without keeping their texts.

    Attributes:
        told: What the desk was told.
        answer: What it answered.
        rest: Who answered, when, and with how many tokens.
    """

    told: int
    answer: int
    rest: int

    @classmethod
    def of(
        cls,
        told: int,
        answer: int,
        *,
        backend: str,
        times: tuple[str, str],
        usage: Mapping[str, int] | None,
    ) -> 'Gist':
        """Makes one of the hashes of the two texts, and of the rest."""
        return cls(told, answer, hash((backend, times, tuple(sorted((usage or {}).items())))))

    def differs_in(self, other: 'Gist') -> str:
        """Returns in words where two differ; empty where they do not."""
        names = ('what it was told', 'the answer', 'who answered, when or with how many tokens')
        return ', '.join(name for name, one, two in zip(names, self, other, strict=True) if one != two)


@dataclass
class FinishedTurn:
    """A turn that a journal has the answer of.

    Attributes:
        answers: The ids of the triggers that it answers.
        gist: What the exchange is to say.
        line: The number of the line with its end, from 1.
        offset: Where that line begins, in bytes.
        followed_at: Where the next turn begins, in bytes; None where none does.
    """

    answers: tuple[str, ...]
    gist: Gist
    line: int
    offset: int
    followed_at: int | None = None


@dataclass
class JournalFacts:
    """What a journal says.

    Attributes:
        header: Its first line, or None where that is none.
        finished: The turns that were answered, in order.
        running: The turn that has no end, and is the last one; empty for none.
        is_whole: Whether it could be read to its end.
    """

    header: SessionHeader | None = None
    finished: list[FinishedTurn] = field(default_factory=list)
    running: str = ''
    is_whole: bool = True


class _Turns:
    """Follows the turns of one journal."""

    def __init__(self, finished: list[FinishedTurn]) -> None:
        self._finished = finished
        self._begun: TurnBegun | None = None
        self._told: int | None = None
        self._answer: int | None = None

    @property
    def running(self) -> str:
        return self._begun.turn_id if self._begun is not None else ''

    def take(self, record: AnyRecord, line: int, offset: int) -> None:
        if isinstance(record, MessageSaid):
            message = record.message
            if self._told is None:
                self._told = hash(message.content) if isinstance(message, UserMessage) else hash('')
            if isinstance(message, AssistantMessage):
                self._answer = hash(message.text)
        elif isinstance(record, TurnBegun):
            self._begun, self._told, self._answer = record, None, None
            if self._finished and self._finished[-1].followed_at is None:
                self._finished[-1].followed_at = offset
        elif isinstance(record, TurnEnded):
            self._end(record, line, offset)
            self._begun = None
        elif isinstance(record, TurnCut):
            self._begun = None

    def _end(self, record: TurnEnded, line: int, offset: int) -> None:
        begun = self._begun
        if begun is None or begun.purpose != 'turn' or record.outcome != 'answered' or self._answer is None:
            return
        gist = Gist.of(
            hash('') if self._told is None else self._told,
            self._answer,
            backend=record.backend,
            times=(record.started_at, record.finished_at or record.timestamp),
            usage=usage_counts(record.usage),
        )
        self._finished.append(FinishedTurn(begun.answers, gist, line, offset))


class JournalFiles:
    """The journals of one desk.

    Args:
        reader: Reads files.
        desk: The desk.

    Attributes:
        headers: The header of each journal that was there at the `look`, by its session; None for one without.
    """

    def __init__(self, reader: Reader, desk: str) -> None:
        self._reader = reader
        self._desk = desk
        self._folder = f'desks/{desk}/journal'
        self._after: dict[str, tuple[str, SessionHeader]] = {}
        self.headers: dict[str, SessionHeader | None] = {}

    def look(self) -> None:
        """Finds out which journals there are, and which follows which: one that another one follows has ended."""
        self.headers = {session_id: self._header(session_id) for session_id in self.session_ids()}
        for session_id, header in self.headers.items():
            if header is not None and header.previous_session_id:
                self._after.setdefault(header.previous_session_id, (session_id, header))

    def session_ids(self) -> list[str]:
        """Returns the sessions that have a journal now, by their ids."""
        names = (name.removesuffix('.jsonl') for name in self._reader.names(self._folder) if name.endswith('.jsonl'))
        return sorted(filter(is_session_id, names), key=split_session_id)

    def path(self, session_id: str) -> str:
        """Returns the file of a session's journal, within the workspace."""
        return f'{self._folder}/{session_id}.jsonl'

    def _header(self, session_id: str) -> SessionHeader | None:
        with self._reader.open(self.path(session_id), 'journal') as opened:
            if opened is None:
                return None
            try:
                line, _, _ = opened[1].read(_HEADER_BYTES).partition(b'\n')
                record = decode_record(line)
            except (OSError, *NO_RECORD):
                return None  # told when it is read
        return record if isinstance(record, SessionHeader) else None

    def follower(self, session_id: str) -> str | None:
        """Returns the session whose journal follows this one's, or None."""
        after = self._after.get(session_id)
        return after[0] if after is not None else None

    def in_order(self) -> list[str]:
        """Returns the sessions in the order in which their journals follow each other."""
        ordered: dict[str, None] = {}
        before = {each: header.previous_session_id if header else '' for each, header in self.headers.items()}
        for session_id in [*(each for each in before if before[each] not in before), *before]:
            following: str | None = session_id
            while following is not None and following not in ordered:
                ordered[following] = None
                following = self.follower(following)
        return list(ordered)

    def size(self, session_id: str) -> int:
        """Returns the size of a journal in bytes; 0 where there is none."""
        try:
            return (self._reader.workspace / self.path(session_id)).stat().st_size
        except OSError:
            return 0

    # -- one journal -------------------------------------------------------------------------------------------

    def read(self, session_id: str) -> JournalFacts | None:
        """Reads a session's journal, and writes down what is wrong with it; None where there is none to be read."""
        with self._reader.open(self.path(session_id), 'journal') as opened:
            return None if opened is None else self._read(*opened, session_id)

    def _read(self, report: FileReport, file: FileIO, session_id: str) -> JournalFacts | None:
        facts = JournalFacts()
        chain, turns = Chain(), _Turns(facts.finished)
        problems = len(report.problems)
        for number, offset, line, record in self._reader.records(report, file, decode_record, NO_RECORD):
            chain.take(chain_line(number, record, line))
            if not isinstance(record, SessionHeader):
                turns.take(record, number, offset)
            elif facts.header is None:
                facts.header = record
                if record.version.partition('.')[0] not in ('1', '2'):
                    report.is_newer(record.version, FORMAT_VERSION)
                    return None
                self._compare_header(report, record, session_id, number, offset)
            else:
                report.problem('is a second header', number, offset)
        report.records -= facts.header is not None
        facts.running = turns.running
        facts.is_whole = not any(found.line is None for found in report.problems[problems:])
        if facts.header is None and facts.is_whole:
            report.problem('has no header', 1, 0)
        self._tell_break(report, chain, session_id)
        return facts

    def _compare_header(
        self, report: FileReport, header: SessionHeader, session_id: str, line: int, offset: int
    ) -> None:
        if header.session_id != session_id:
            report.problem(f'is of the session {header.session_id!r}', line, offset)
        if header.desk and header.desk != self._desk:
            report.problem(f'is of the desk {header.desk!r}', line, offset)
        after = self._after.get(header.previous_session_id)
        if after is not None and after[0] != session_id:
            report.problem(f'follows {header.previous_session_id}, as {after[0]} does', line, offset)

    def _tell_break(self, report: FileReport, chain: Chain, session_id: str) -> None:
        broken = chain.end()
        if broken is not None:
            whose = f'the record {broken.number}' if broken.number else 'the header'
            report.problem(f'{whose} {_BROKEN[broken.what]}', broken.line, self._offset(report.path, broken.line))
        report.settle(contradicted=broken is not None)
        after = self._after.get(session_id)
        if broken is None and after is not None and chain.last is not None:
            following, header = after
            if header.previous_digest != chain.last.digest:
                what = f'does not end as the journal of {following} says: its last records were altered or are missing'
                report.problem(what, chain.last.line, self._offset(report.path, chain.last.line))

    def _offset(self, path: str, line: int) -> int | None:
        with self._reader.open(path, 'journal') as opened:
            lines = split(opened[1]) if opened is not None else ()
            return next((offset for number, offset, *_ in lines if number == line), None)

    # -- all of them -------------------------------------------------------------------------------------------

    def compare_all(self, is_put_away: Iterable[str]) -> None:
        """Sees that each journal but the first follows another one that is there.

        Args:
            is_put_away: Sessions that are older than all that is here.
        """
        put_away = set(is_put_away)
        first = next(iter(self.in_order()), None)
        for session_id, header in self.headers.items():
            report = self._reader.reports.of(self.path(session_id), 'journal')
            if header is None or report.newer:
                continue
            previous = header.previous_session_id
            if not previous and session_id != first:
                report.problem('does not say which journal it follows, and is not the first', 1, 0)
            elif previous and previous not in self.headers and previous in put_away:
                report.note(f'follows {previous}, which is not here any more', 1, 0)
            elif previous and previous not in self.headers:
                report.problem(f'follows {previous}, whose journal is missing', 1, 0)


_BROKEN = {
    'altered': 'was altered',
    'missing': 'is missing in front of this line',
    'reordered': 'was moved',
}
