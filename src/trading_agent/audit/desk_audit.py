"""One desk's files held against each other.

They are read in the order opposite to that in which a daemon writes them, so that whatever an earlier one tells of is
in the later ones by then: triggers, state, each log, and its journal. What is written meanwhile is no contradiction.
"""

import os
from collections.abc import Iterable
from datetime import date
from functools import cached_property
from pathlib import Path

from trading_agent.audit.documents import DeskDocuments
from trading_agent.audit.findings import DeskReport
from trading_agent.audit.folders import look_through_desk
from trading_agent.audit.journal_files import JournalFiles
from trading_agent.audit.reader import Reader
from trading_agent.audit.session_documents import SessionDocuments
from trading_agent.audit.session_logs import SessionLogs
from trading_agent.audit.trigger_files import TriggerFacts, TriggerFiles
from trading_agent.memory.rollover import RolloverRecord
from trading_agent.memory.session_state import SessionState, is_session_id, split_session_id


class DeskAudit:
    """Reads all files of one desk, the first of them at once.

    Args:
        workspace: The workspace.
        desk: The desk, which has a folder.
        busy: Whether a daemon may be writing at the same time.
    """

    def __init__(self, workspace: Path, desk: str, *, busy: bool) -> None:
        self._workspace = workspace
        self._desk = DeskReport(desk)
        self._folder = f'desks/{desk}'
        self._busy = busy
        self._reader = Reader(workspace, self._desk.files, busy=busy)
        self._documents = SessionDocuments(self._reader, desk)
        self._journals = JournalFiles(self._reader, desk)
        self._triggers: TriggerFacts = TriggerFiles(self._reader, desk, self._journals).read()
        self._state = self._documents.read_state()
        self._ids = self._documents.read_ids()
        self._logs = SessionLogs(self._reader, self._desk, self._journals, self._triggers)

    def run(self) -> DeskReport:
        """Reads what is left to be read, compares, and returns what was found."""
        desk = self._desk
        self._logs.read_all()
        self._read_other_journals()
        self._compare_sessions()
        state, rollover = self._documents.state_and_rollover()
        self._compare_state(state, rollover)
        if rollover is not None:
            self._compare_rollover(rollover, state)
        self._documents.read_debts(self._is_known)
        self._documents.read_summaries(self._logs.exchanges, self._journals, self._is_known)
        DeskDocuments(self._reader, desk.name).read_all()
        look_through_desk(self._reader, desk.name, is_ours=self._is_ours)
        desk.triggers = self._triggers.accepted
        desk.open_triggers = len(self._triggers.open)
        desk.journal_records = sum(report.records for report in desk.files if report.kind == 'journal')
        return desk

    @property
    def _is_ours(self) -> bool:
        return bool(self._triggers.is_there or self._journals.headers or self._ids)

    # -- what there is, and what is missing --------------------------------------------------------------------

    @cached_property
    def _known(self) -> set[str]:
        return {*self._ids, *self._logs.exchanges, *self._journals.headers, *self._compressed}

    def _is_known(self, session_id: str) -> bool:
        """Returns whether there is such a session, or was; it may have been begun since the logs were listed."""
        return session_id in self._known or (is_session_id(session_id) and self._has(self._logs.path(session_id)))

    @cached_property
    def _compressed(self) -> set[str]:
        """The sessions whose log a person has put away under another ending."""
        names = (name.split('.') for name in self._reader.names(f'{self._folder}/sessions'))
        return {
            name[0]
            for name in names
            if is_session_id(name[0]) and len(name) > 2 and not name[-1].startswith('damaged-')
        }

    def _is_put_away(self, session_id: str) -> bool:
        """Returns whether a session is older than all that is here, or its log was put away."""
        return session_id in self._compressed or self._oldest is None or split_session_id(session_id) < self._oldest

    @cached_property
    def _oldest(self) -> tuple[date, int] | None:
        return min(map(split_session_id, {*self._logs.exchanges, *self._journals.headers}), default=None)

    @cached_property
    def _newest_log(self) -> tuple[date, int] | None:
        return max(map(split_session_id, self._logs.exchanges), default=None)

    def _has(self, path: str) -> bool:
        return os.path.exists(self._workspace / path)  # noqa: PTH110 - one in a folder that cannot be read is not there

    def _read_other_journals(self) -> None:
        """Reads the journals of sessions that had no log when the logs were listed."""
        for session_id in self._journals.session_ids():
            path = self._logs.path(session_id)
            if session_id in self._logs.exchanges or (self._has(path) and path not in self._desk.files):
                continue  # read before, or begun since
            self._journals.read(session_id)
            if session_id not in self._compressed and path not in self._desk.files:
                self._desk.files.of(path, 'exchanges').problem('is missing: the session has a journal')

    def _compare_sessions(self) -> None:
        self._journals.compare_all(filter(self._is_put_away, self._followed))
        self._find_missing_journals()
        for session_id, answered in self._logs.sessions_without_log():
            if not is_session_id(session_id):
                spot = next(iter(answered.values()))
                self._desk.files.of(spot.path, 'triggers').problem(
                    f'names {session_id!r}, which is no session', spot.line, spot.offset
                )
            elif not self._is_put_away(session_id):
                self._tell_missing_log(session_id, f'{len(answered)} triggers are closed as answered there')
        for session_id in self._ids:
            if not self._is_put_away(session_id) and not self._is_newest(session_id):
                self._tell_missing_log(session_id, 'its id was given out')
        if self._journals.headers and not self._triggers.is_there and not self._has(f'{self._folder}/triggers.jsonl'):
            self._desk.files.of(f'{self._folder}/triggers.jsonl', 'triggers').problem('is missing')
        self._compare_ids()
        self._find_missing_archives()
        for kind, session_ids in (('triggers', self._triggers.archived), ('notes', self._noted)):
            for session_id in session_ids:
                if not self._is_known(session_id) and not self._is_put_away(session_id):
                    path = f'{self._folder}/{kind}/{session_id}.jsonl'
                    report = self._desk.files.of(path, 'triggers' if kind == 'triggers' else 'notes')
                    report.problem('is of a session that is not known')

    def _compare_ids(self) -> None:
        """Sees that the id of each session with a journal was given out; the first program wrote down none.

        An id is written down before its journal is made, and the journals were looked at before the ids were read.
        """
        path = f'{self._folder}/sessions/.session-ids'
        newest = max(map(split_session_id, self._ids), default=None)
        unlisted = [session_id for session_id in self._journals.headers if session_id not in self._ids]
        if not unlisted or (path in self._desk.files and self._desk.files.of(path, 'session_ids').problems):
            return
        what = f'does not have {unlisted[0]}, which has a journal' if self._ids else 'is missing: there are sessions'
        # The one that was given out last counts where the state is lost; which it was, is certain only in this case.
        are_older = newest is None or split_session_id(unlisted[-1]) < newest
        self._desk.files.of(path, 'session_ids').problem(what, mend='ids' if are_older else None)

    def _find_missing_archives(self) -> None:
        """Tells of sessions that have ended and whose triggers are not archived."""
        for session_id in self._journals.headers if self._triggers.is_there else ():
            has_ended = session_id in self._logs.exchanges and self._journals.follower(session_id)
            path = f'{self._folder}/triggers/{session_id}.jsonl'
            if has_ended and session_id not in self._triggers.archived and not self._has(path):
                self._desk.files.of(path, 'triggers').problem('is missing: the session has ended')

    @property
    def _noted(self) -> Iterable[str]:
        names = (name.removesuffix('.jsonl') for name in self._reader.names(f'{self._folder}/notes'))
        return filter(is_session_id, names)

    @property
    def _followed(self) -> Iterable[str]:
        """The sessions that the journals say they follow."""
        for header in self._journals.headers.values():
            if header is not None and is_session_id(header.previous_session_id):
                yield header.previous_session_id

    def _tell_missing_log(self, session_id: str, why: str) -> None:
        path = self._logs.path(session_id)
        if path not in self._desk.files and not self._has(path):
            self._desk.files.of(path, 'exchanges').problem(f'is missing: {why}')

    def _is_newest(self, session_id: str) -> bool:
        """Returns whether a session follows all that are here: a crash came before its log was made."""
        return self._newest_log is None or split_session_id(session_id) > self._newest_log

    def _find_missing_journals(self) -> None:
        """Tells of sessions without a journal, of a desk that keeps journals; they have not always been kept."""
        there = self._journals.session_ids()
        first = min(map(split_session_id, there), default=None)
        current = self._state.session_id if self._state is not None else None
        for session_id, exchanges in self._logs.exchanges.items():
            path = self._journals.path(session_id)
            if session_id in there or path in self._desk.files or first is None or split_session_id(session_id) < first:
                continue
            if exchanges or session_id == current:
                self._desk.files.of(path, 'journal').problem('is missing: the session has a log')

    # -- state and rollover ------------------------------------------------------------------------------------

    def _compare_state(self, state: SessionState | None, rollover: RolloverRecord | None) -> None:
        report = self._documents.state_report if self._state is not None else None
        if report is not None and self._state is not None:
            session_id = self._state.session_id
            exchanges = self._logs.exchanges.get(session_id)
            if exchanges is None and not self._has(self._logs.path(session_id)):
                report.problem(f'names the session {session_id}, which has no log')
            for name, route in self._state.routes.items() if exchanges is not None else ():
                if exchanges is not None and route.exchanges_seen > exchanges:
                    seen = f'{name} has seen {route.exchanges_seen} exchanges of {session_id}'
                    report.problem(f'says that {seen}, which has {exchanges}')
        path = f'{self._folder}/sessions/state.json'
        if state is None and self._logs.exchanges and path not in self._desk.files and not self._has(path):
            self._tell_missing_state()
        elif state is not None:
            self._compare_newest(state, rollover)
            self._tell_running(state)

    def _tell_missing_state(self) -> None:
        report = self._documents.state_report
        if self._busy and not any(self._logs.exchanges.values()):
            report.note('is missing: the first session is being begun')
        else:
            report.problem('is missing: there are sessions', mend='state')

    def _compare_newest(self, state: SessionState, rollover: RolloverRecord | None) -> None:
        """Sees that the state names the session that no other one follows."""
        following = rollover.new_session_id if rollover is not None else None
        if self._journals.headers:
            newest = self._journals.follower(state.session_id) or state.session_id
        else:
            with_exchanges = [session_id for session_id, exchanges in self._logs.exchanges.items() if exchanges]
            newest = max([state.session_id, *with_exchanges], key=split_session_id)
        if newest not in (state.session_id, following):
            self._documents.state_report.problem(f'names the session {state.session_id}, and {newest} follows it')

    def _tell_running(self, state: SessionState) -> None:
        running = self._logs.running.get(state.session_id)
        if running:
            report = self._desk.files.of(self._journals.path(state.session_id), 'journal')
            after = 'is running' if self._busy else 'has no end: the next start marks it as cut off'
            report.note(f'the turn {running} {after}')

    def _compare_rollover(self, rollover: RolloverRecord, state: SessionState | None) -> None:
        report = self._desk.files.of(f'{self._folder}/sessions/rollover.json', 'rollover')
        ended, new = rollover.ended_session_id, rollover.new_session_id
        for session_id in filter(None, (ended, new)):
            if not is_session_id(session_id):
                report.problem(f'names {session_id!r}, which is no session')
                return
        goes_on = '' if self._busy else ': the next start goes on with it'
        report.note(f'the session {ended} is being rolled over, next is the stage {rollover.stage!r}{goes_on}')
        exchanges = self._logs.exchanges.get(ended)
        if exchanges is None and not self._has(self._logs.path(ended)):
            report.problem(f'is about the session {ended}, which has no log')
        elif exchanges is not None and rollover.exchanges > exchanges and not self._busy:
            report.problem(f'says that {ended} has {rollover.exchanges} exchanges, and there are {exchanges}')
        if state is not None and state.session_id not in (ended, new):
            report.problem(f'is about the session {ended}, and the current one is {state.session_id}')


def audit_desk(workspace: Path, desk: str, *, busy: bool) -> DeskReport:
    """Reads all files of a desk and returns what was found. Nothing is changed.

    Args:
        workspace: The workspace.
        desk: The desk, which has a folder.
        busy: Whether a daemon may be writing at the same time.
    """
    folder = workspace / 'desks' / desk
    if not folder.is_dir():
        report = DeskReport(desk)
        report.files.of(f'desks/{desk}', 'folder').problem('is no folder')
        return report
    return DeskAudit(workspace, desk, busy=busy).run()
