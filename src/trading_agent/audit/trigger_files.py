"""A desk's triggers: the file of now, and those archived at each rollover, which follow each other without a gap."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from io import FileIO

from trading_agent.audit.findings import FileReport
from trading_agent.audit.journal_files import JournalFiles
from trading_agent.audit.reader import Reader, Spot
from trading_agent.clock import instant_in
from trading_agent.memory.session_state import is_session_id, split_session_id
from trading_agent.memory.trigger_log import (
    FORMAT_VERSION,
    Accepted,
    Closed,
    Header,
    Interrupted,
    Started,
    decode,
)
from trading_agent.memory.trigger_queue import REMEMBERED

_TRIES = 20
_OPEN_SHOWN = 10


@dataclass
class _Open:
    """A trigger that a file leaves open, and where it was accepted in that file."""

    line: int
    offset: int
    attempts: int = 0
    interrupted: str = ''
    in_the_air: bool = False

    @property
    def in_words(self) -> str:
        if self.in_the_air:
            return f'was started, attempt {self.attempts}'
        return f'was interrupted: {self.interrupted}' if self.interrupted else 'waits'


@dataclass
class _Known:
    """What a file knows of triggers: how far the open ones are, and how the closed ones ended.

    Attributes:
        open: The open ones.
        closed: Their outcomes.
        closings: When and where each was closed.
        begins: When the first trigger was accepted after the file was begun; empty where none was.
    """

    open: dict[str, _Open] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    closings: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    begins: str = ''


@dataclass
class TriggerFacts:
    """What the files say of a desk's triggers.

    Attributes:
        answered: Where each was closed as answered, by the session that is named there and by its id.
        otherwise: The outcome of each that was closed in another way.
        open: Those that are open.
        accepted: How many were accepted.
        is_there: Whether there is a file of now.
        archived: The sessions whose triggers are archived.
        is_whole: Whether all of the files could be read.
    """

    answered: dict[str, dict[str, Spot]] = field(default_factory=dict)
    otherwise: dict[str, str] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    accepted: int = 0
    is_there: bool = False
    archived: Sequence[str] = ()
    is_whole: bool = True


class TriggerFiles:
    """The files of one desk's triggers.

    Args:
        reader: Reads files.
        desk: The desk.
        journals: The desk's journals, which say in which order sessions followed each other.
    """

    def __init__(self, reader: Reader, desk: str, journals: JournalFiles) -> None:
        self._reader = reader
        self._desk = desk
        self._journals = journals
        self._order: Mapping[str, int] = {}
        self._folder = f'desks/{desk}/triggers'
        self._facts = TriggerFacts()
        self._before: tuple[FileReport, _Known] | None = None

    def read(self) -> TriggerFacts:
        """Reads them all: what a rollover moves meanwhile is read once, and not missed."""
        for last in (*[False] * _TRIES, True):
            with self._reader.open(f'{self._folder}.jsonl', 'triggers') as opened:
                archived = self._archived(opened[1] if opened else None)
                # Once the file of now is found in its place, all that was there before it is in the list.
                if last or self._is_in_place(opened[1] if opened else None):
                    # Looked at now, so that the journal of each session in the list is there.
                    self._journals.look()
                    self._order = {each: place for place, each in enumerate(self._journals.in_order())}
                    self._read_all(sorted(archived, key=self._place), opened)
                    break
        return self._facts

    def _is_in_place(self, file: FileIO | None) -> bool:
        with suppress(OSError):
            status = (self._reader.workspace / f'{self._folder}.jsonl').stat()
            return file is not None and os.path.samestat(status, os.fstat(file.fileno()))
        return file is None

    def _archived(self, file: FileIO | None) -> list[str]:
        """Returns the sessions with an archive; not one that is the file of now under a second name."""
        names = (name.removesuffix('.jsonl') for name in self._reader.names(self._folder) if name.endswith('.jsonl'))
        return [each for each in filter(is_session_id, names) if file is None or not self._is_linked(each, file)]

    def _place(self, session_id: str) -> tuple[int, tuple[date, int]]:
        # One without a journal is from before there were any.
        return self._order.get(session_id, -1), split_session_id(session_id)

    def _is_linked(self, session_id: str, file: FileIO) -> bool:
        try:
            status = (self._reader.workspace / self._folder / f'{session_id}.jsonl').stat()
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(file.fileno()))

    def _read_all(self, archived: Sequence[str], current: tuple[FileReport, FileIO] | None) -> None:
        self._facts.archived = archived
        before: str | None = None
        for session_id in archived:
            if before is not None and not self._follows(session_id, before):
                self._before = None  # between the two a file may have been put away
            with self._reader.open(f'{self._folder}/{session_id}.jsonl', 'triggers') as opened:
                if opened is not None:
                    self._read_file(*opened)
            before = session_id
        if current is None:
            return
        self._facts.is_there = True
        # A desk that has had one session has nothing in front of its first file.
        is_first = not archived and len(self._order) == 1
        self._tell_open(current[0], self._read_file(*current, is_first=is_first).open)

    def _follows(self, session_id: str, before: str) -> bool:
        place = self._order.get(session_id)
        return place is not None and self._order.get(before) == place - 1

    def _tell_open(self, report: FileReport, left: dict[str, _Open]) -> None:
        self._facts.open = set(left)
        if left:
            shown = ', '.join(f'{key} ({left[key].in_words})' for key in list(left)[:_OPEN_SHOWN])
            more = f' and {len(left) - _OPEN_SHOWN} more' if len(left) > _OPEN_SHOWN else ''
            report.note(f'{len(left)} open trigger{"s" if len(left) > 1 else ""}: {shown}{more}')

    # -- one file ----------------------------------------------------------------------------------------------

    def _read_file(self, report: FileReport, file: FileIO, *, is_first: bool = False) -> _Known:
        known = _Known()
        before = _Known() if is_first else self._before[1] if self._before is not None else None
        in_heading = True  # the ids of a week stand in front, and were accepted in an earlier file
        contradicted = False
        for number, offset, _, record in self._reader.records(report, file, decode):
            what = ''
            if isinstance(record, Closed):
                what = _close(known, record, before, in_heading=in_heading)
                known.closings[record.id] = record.at, number, offset
                self._remember(report.path, record, number, offset)
            elif isinstance(record, Header):
                if not self._is_known(report, record, number, offset, is_begun=bool(known.open or known.closed)):
                    self._before, self._facts.is_whole = None, False
                    return _Known()
            elif isinstance(record, Accepted):
                in_heading = False
                if before is None or record.trigger.id not in before.open:
                    self._facts.accepted += 1
                    known.begins = known.begins or record.at
                what = _accept(known, record.trigger.id, number, offset)
            else:
                in_heading = False
                what = _run(known, record)
            if report.records == 1 and not isinstance(record, Header):
                report.problem('does not begin with a header', number, offset)
            if what:
                contradicted = True
                report.problem(what, number, offset)
        if not report.records and not report.problems and self._journals.headers:
            report.problem('is empty')
        self._facts.is_whole &= all(found.line is not None for found in report.problems)
        report.settle(contradicted=contradicted)
        self._compare_with_before(known)
        self._before = report, known
        return known

    def _is_known(self, report: FileReport, header: Header, number: int, offset: int, *, is_begun: bool) -> bool:
        """Writes down what is wrong with a header; returns whether what follows can be read."""
        if header.version > FORMAT_VERSION:
            report.is_newer(header.version, FORMAT_VERSION)
            return False
        if header.desk != self._desk:
            report.problem(f'is of the desk {header.desk!r}', number, offset)
        if is_begun:
            report.problem('has another header behind records', number, offset)
        return True

    def _remember(self, path: str, record: Closed, line: int, offset: int) -> None:
        if record.outcome != 'answered':
            self._facts.otherwise[record.id] = record.outcome
        elif record.session_id is not None:
            answered = self._facts.answered.setdefault(record.session_id, {})
            if record.id not in answered:
                answered[record.id] = Spot(path, line, offset)

    def _compare_with_before(self, known: _Known) -> None:
        """Sees that what the file before left open is in this one, and that it remembers for a week what was closed."""
        if self._before is None:
            return
        report, before = self._before
        for trigger_id, entry in before.open.items():
            if trigger_id not in known.open and trigger_id not in known.closed:
                what = f'the trigger {trigger_id} is open here, and the file after this one does not know it'
                report.problem(what, entry.line, entry.offset)
        begun = instant_in(known.begins)
        for trigger_id, (at, line, offset) in before.closings.items():
            outcome, later, closed = before.closed[trigger_id], known.closed.get(trigger_id), instant_in(at)
            if later is not None and later != outcome:
                what = f'closes the trigger {trigger_id} as {outcome}, and the file after this one as {later}'
                report.problem(what, line, offset)
            elif later is None and begun and closed and begun - REMEMBERED < closed <= begun:
                what = f'the trigger {trigger_id} is closed here, and the file after this one has forgotten it'
                report.problem(what, line, offset)


def _accept(known: _Known, trigger_id: str, line: int, offset: int) -> str:
    """Follows an acceptance; returns what is wrong with it, or nothing."""
    if trigger_id in known.open or trigger_id in known.closed:
        return f'the trigger {trigger_id} is accepted twice'
    known.open[trigger_id] = _Open(line, offset)
    return ''


def _run(known: _Known, record: Started | Interrupted) -> str:
    """Follows a start, or its end without an answer; returns what is wrong with it, or nothing."""
    entry = known.open.get(record.id)
    if entry is not None:
        entry.attempts = record.attempt
        entry.in_the_air = isinstance(record, Started)
        entry.interrupted = record.reason if isinstance(record, Interrupted) else ''
    elif record.id not in known.closed:
        return f'the trigger {record.id} is not known'
    return ''


def _close(known: _Known, record: Closed, before: _Known | None, *, in_heading: bool) -> str:
    """Follows a closing; returns what is wrong with it, or nothing."""
    outcome = known.closed.get(record.id)
    known.closed[record.id] = record.outcome
    was_open = known.open.pop(record.id, None) is not None
    if record.outcome == 'answered' and record.session_id is None:
        return f'closes the trigger {record.id} as answered, and names no session'
    if outcome is not None and outcome != record.outcome:
        return f'the trigger {record.id} is closed as {record.outcome}, and was closed as {outcome} before'
    is_carried = in_heading and (before is None or record.id in before.closed)
    if not (was_open or outcome is not None or is_carried):
        return f'closes the trigger {record.id}, which is not known'
    return ''
