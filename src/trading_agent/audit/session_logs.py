"""A desk's sessions: the exchanges in their logs, held against the journals' turns and the triggers' outcomes."""

from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import date, timedelta
from typing import NamedTuple

from trading_agent.audit.findings import DeskReport, FileReport
from trading_agent.audit.journal_files import FinishedTurn, Gist, JournalFacts, JournalFiles
from trading_agent.audit.reader import Reader, Spot
from trading_agent.audit.trigger_files import TriggerFacts
from trading_agent.clock import instant_in
from trading_agent.memory.exchange import NO_EXCHANGE, Exchange, decode_line
from trading_agent.memory.session_state import is_session_id, split_session_id
from trading_agent.memory.trigger_queue import REMEMBERED


class _Logged(NamedTuple):
    """An exchange of a log."""

    answers: tuple[str, ...]
    gist: Gist
    finished_at: str
    line: int
    offset: int


class _Seen(NamedTuple):
    """Where a trigger was answered."""

    session_date: date
    spot: Spot
    finished_at: str


class SessionLogs:
    """The logs of one desk's sessions.

    Args:
        reader: Reads files.
        desk: Gets the counts.
        journals: The desk's journals.
        triggers: What the desk's triggers say; it was read before.

    Attributes:
        exchanges: How many exchanges each session has.
        running: The turn that has no end yet, by its session.
    """

    def __init__(self, reader: Reader, desk: DeskReport, journals: JournalFiles, triggers: TriggerFacts) -> None:
        self._reader = reader
        self._desk = desk
        self._journals = journals
        self._triggers = triggers
        self._folder = f'desks/{desk.name}/sessions'
        self._seen: dict[str, _Seen] = {}
        self.exchanges: dict[str, int] = {}
        self.running: dict[str, str] = {}

    def path(self, session_id: str) -> str:
        """Returns the file of a session's log, within the workspace."""
        return f'{self._folder}/{session_id}.jsonl'

    def session_ids(self) -> list[str]:
        """Returns the sessions that have a log now, by their ids."""
        names = (name.removesuffix('.jsonl') for name in self._reader.names(self._folder) if name.endswith('.jsonl'))
        return sorted(filter(is_session_id, names), key=split_session_id)

    def read_all(self) -> None:
        """Reads each log, and its journal after it: what is in the log is in that already."""
        for session_id in self.session_ids():
            self._forget_before(split_session_id(session_id)[0] - REMEMBERED - timedelta(days=2))
            self._read(session_id)
        self._desk.sessions = len(self.exchanges)
        self._desk.exchanges = sum(self.exchanges.values())

    def _forget_before(self, day: date) -> None:
        """Keeps the ids of some days only: after a week an id may be used for another trigger."""
        if self._seen and next(iter(self._seen.values())).session_date < day:
            self._seen = {key: seen for key, seen in self._seen.items() if seen.session_date >= day}

    def _read(self, session_id: str) -> None:
        # A turn that another one follows by now has its exchange in the log that is read next.
        settled = self._journals.size(session_id)
        with self._reader.open(self.path(session_id), 'exchanges') as opened:
            if opened is None:
                return
            report, file = opened
            logged = [
                self._logged(report, exchange, number, offset, session_id)
                for number, offset, _, exchange in self._reader.records(report, file, decode_line, NO_EXCHANGE)
            ]
        self.exchanges[session_id] = len(logged)
        is_whole = all(found.line is not None for found in report.problems)
        lost = is_whole and self._compare_with_triggers(report, session_id, logged)
        journal = self._journals.read(session_id)
        if journal is not None and journal.is_whole and is_whole:
            lost |= self._compare_with_journal(report, session_id, logged, journal, settled)
        if journal is not None and journal.running:
            self.running[session_id] = journal.running
        report.settle(contradicted=lost)

    def _logged(self, report: FileReport, exchange: Exchange, line: int, offset: int, session_id: str) -> _Logged:
        gist = Gist.of(
            hash(exchange.trigger_text),
            hash(exchange.answer),
            backend=exchange.backend_name,
            times=(exchange.started_at or '', exchange.finished_at),
            usage=exchange.usage,
        )
        logged = _Logged(exchange.answers, gist, exchange.finished_at, line, offset)
        for trigger_id in exchange.answers:
            seen = self._seen.get(trigger_id)
            if seen is not None and not _is_long_after(exchange.finished_at, seen.finished_at):
                path, first, _ = seen.spot
                where = f'line {first}' if path == report.path else f'{path}, line {first}'
                report.problem(f'the trigger {trigger_id} is answered a second time: see {where}', line, offset)
            self._seen[trigger_id] = _Seen(
                split_session_id(session_id)[0], Spot(report.path, line, offset), exchange.finished_at
            )
        return logged

    # -- against the triggers ----------------------------------------------------------------------------------

    def _compare_with_triggers(self, report: FileReport, session_id: str, logged: list[_Logged]) -> bool:
        """Holds exchanges against what became of triggers; returns whether one that was answered is not there."""
        answered = self._triggers.answered.pop(session_id, {})
        there = {trigger_id for exchange in logged for trigger_id in exchange.answers}
        covered = self._has_all_triggers_of(session_id)
        lost = [(trigger_id, spot) for trigger_id, spot in answered.items() if trigger_id not in there]
        for trigger_id, spot in lost:
            what = f'the trigger {trigger_id} is closed as answered, and {report.path} has no exchange of it'
            self._reader.reports.of(spot.path, 'triggers').problem(what, spot.line, spot.offset)
        for exchange in logged if not self._reader.busy else ():
            for trigger_id in exchange.answers:
                otherwise = self._triggers.otherwise.get(trigger_id)
                if trigger_id in self._triggers.open:
                    what = f'the trigger {trigger_id} is answered here and still open: the next start closes it'
                    report.note(what, exchange.line, exchange.offset)
                elif otherwise is not None and trigger_id not in answered:
                    what = f'the trigger {trigger_id} is answered here, and closed as {otherwise}'
                    report.note(what, exchange.line, exchange.offset)
                elif covered and trigger_id not in answered:
                    what = f'the trigger {trigger_id} is answered here, and no file of triggers knows it'
                    report.problem(what, exchange.line, exchange.offset)
        return bool(lost)

    def _has_all_triggers_of(self, session_id: str) -> bool:
        """Returns whether the file that has to know each trigger of a session is there: its archive, or that of now."""
        is_current = session_id in self._journals.headers and not self._journals.follower(session_id)
        is_there = session_id in self._triggers.archived or (is_current and self._triggers.is_there)
        return is_there and self._triggers.is_whole

    def sessions_without_log(self) -> Iterator[tuple[str, dict[str, Spot]]]:
        """Yields each session that triggers were answered in and that has no log, with these triggers."""
        yield from self._triggers.answered.items()

    # -- against the journal -----------------------------------------------------------------------------------

    def _compare_with_journal(
        self, report: FileReport, session_id: str, logged: list[_Logged], journal: JournalFacts, settled: int
    ) -> bool:
        """Holds exchanges against turns that were answered; returns whether a turn lacks its exchange."""
        turns: defaultdict[tuple[str, ...], deque[FinishedTurn]] = defaultdict(deque)
        for turn in journal.finished:
            turns[turn.answers].append(turn)
        last = 0
        begun_at = journal.header.created_at if journal.header is not None else ''
        for exchange in logged:
            if not exchange.answers:
                continue  # of another program, perhaps
            same = turns.get(exchange.answers)
            if same:
                turn = same.popleft()
                differs = exchange.gist.differs_in(turn.gist)
                if differs:
                    what = f'says something else than the journal in: {differs}'
                    report.problem(what, exchange.line, exchange.offset)
                if turn.line < last:
                    report.problem('stands behind the exchange of a later turn', exchange.line, exchange.offset)
                last = max(last, turn.line)
            elif not _is_before(exchange.finished_at, begun_at):
                what = f'the journal has no finished turn of the trigger {exchange.answers[0]}'
                report.problem(what, exchange.line, exchange.offset)
        left = [turn for same in turns.values() for turn in same if turn.answers]
        lost = [self._tell_lost(session_id, turn, settled) for turn in left]
        return any(lost)

    def _tell_lost(self, session_id: str, turn: FinishedTurn, settled: int) -> bool:
        """Writes down what a finished turn without an exchange means; returns whether its exchange is lost."""
        report = self._reader.reports.of(self._journals.path(session_id), 'journal')
        name = f'the answer to the trigger {turn.answers[0]}'
        is_last = turn.followed_at is None or turn.followed_at >= settled
        if is_last and self._reader.busy:
            return False
        if is_last and self._triggers.open.intersection(turn.answers):
            report.note(f'{name} is not in the log yet: the next start puts it there', turn.line, turn.offset)
            return False
        outcomes = {self._triggers.otherwise.get(trigger_id) for trigger_id in turn.answers}
        if None not in outcomes:
            report.note(
                f'{name} came too late: it was closed as {", ".join(map(str, outcomes))}', turn.line, turn.offset
            )
            return False
        report.problem(f'{name} is not in {self.path(session_id)}', turn.line, turn.offset)
        return True


def _is_before(text: str, other: str) -> bool:
    at, begun_at = instant_in(text), instant_in(other)
    return at is not None and begun_at is not None and at < begun_at


def _is_long_after(text: str, other: str) -> bool:
    """Returns whether an id may have been forgotten, and used for another trigger, between the two."""
    later, earlier = instant_in(text), instant_in(other)
    return later is not None and earlier is not None and abs(later - earlier) > REMEMBERED
