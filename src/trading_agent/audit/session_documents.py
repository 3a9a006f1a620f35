"""What stands beside the logs in a desk's sessions folder: state, a rollover under way, ids, summaries, debts."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from trading_agent.audit.documents import decoded, document, text
from trading_agent.audit.findings import FileReport
from trading_agent.audit.journal_files import JournalFiles
from trading_agent.audit.reader import CUT_OFF, Reader, left_by_a_crash
from trading_agent.memory.daily_summary import split_sections
from trading_agent.memory.rollover import Review, RolloverRecord, SummaryPart
from trading_agent.memory.session_state import SessionState, decode_state, parse_date, split_session_id

_BEGINNING_OF_ID = re.compile(rb'[\d-]{1,20}')
_TRIES = 20


class _Backfill(msgspec.Struct, frozen=True):
    """`backfill.json`."""

    session_id: str = ''
    parts: tuple[SummaryPart, ...] = ()
    review: Review | None = None


class SessionDocuments:
    """These files of one desk.

    Args:
        reader: Reads files.
        desk: The desk.
    """

    def __init__(self, reader: Reader, desk: str) -> None:
        self._reader = reader
        self._folder = f'desks/{desk}/sessions'
        self._summaries = f'{self._folder}/summaries'

    # -- state and rollover ------------------------------------------------------------------------------------

    @property
    def state_report(self) -> FileReport:
        """What was found in state.json."""
        return self._reader.reports.of(f'{self._folder}/state.json', 'state')

    def state(self) -> SessionState | None:
        """Returns the state as it is now; None where it is missing or damaged. What is wrong is for `read_state`."""
        data = self._bytes('state.json')
        return None if data is None else decode_state(data)[0]

    def read_state(self) -> SessionState | None:
        """Reads the state and writes down where it is damaged; None where it is missing or damaged."""
        found = self._reader.content(f'{self._folder}/state.json', 'state')
        if found is None:
            return None
        report, data = found
        state, problem = decode_state(data)
        if problem:
            report.problem(f'is damaged: {problem[:300]}', mend='state' if state is None else None)
        report.records = int(state is not None)
        return state

    def state_and_rollover(self) -> tuple[SessionState | None, RolloverRecord | None]:
        """Reads both as they stood at one time, and writes down where the rollover is damaged."""
        state, rollover = self.state(), self._bytes('rollover.json')
        for _ in range(_TRIES):
            state = self.state()
            before, rollover = rollover, self._bytes('rollover.json')
            if rollover == before:
                break
        if rollover is None:
            return state, None
        what = 'the next start moves it aside, and begins the rollover again'
        report = self._reader.reports.of(f'{self._folder}/rollover.json', 'rollover')
        return state, decoded(report, rollover, RolloverRecord, what)

    def _bytes(self, name: str) -> bytes | None:
        try:
            return (self._reader.workspace / self._folder / name).read_bytes()
        except OSError:
            return None

    # -- ids and debts -----------------------------------------------------------------------------------------

    def read_ids(self) -> list[str]:
        """Returns every id that was given out, as far as that was written down."""
        ids: list[str] = []
        with self._reader.open(f'{self._folder}/.session-ids', 'session_ids') as opened:
            if opened is None:
                return ids
            report, file = opened
            records = self._reader.records(report, file, _id_in, looks_like=_looks_like)
            ids += [session_id for *_, session_id in records]
        report.settle()
        return ids

    def read_debts(self, is_known: Callable[[str], bool]) -> None:
        """Reads which summaries were made late, and how far the next one is.

        Args:
            is_known: Says of a session whether there is one, or was.
        """
        what = 'it only costs the desk a note that a summary was made late'
        untold = document(self._reader, f'{self._folder}/untold.json', 'untold', list[str], what)
        what = 'it only costs asking a model again'
        backfill = document(self._reader, f'{self._folder}/backfill.json', 'backfill', _Backfill, what)
        named = [(untold[0], untold[1])] if untold is not None and untold[1] else []
        if backfill is not None and backfill[1] is not None and backfill[1].session_id:
            named.append((backfill[0], [backfill[1].session_id]))
        for report, session_ids in named:
            for session_id in itertools.filterfalse(is_known, session_ids):
                report.problem(f'names the session {session_id!r}, which is not known')

    # -- summaries ---------------------------------------------------------------------------------------------

    def read_summaries(
        self, exchanges: Mapping[str, int], journals: JournalFiles, is_known: Callable[[str], bool]
    ) -> None:
        """Reads the summaries, and sees that each session that has ended has one section.

        Args:
            exchanges: How many exchanges each session has.
            journals: The desk's journals: a session that another one follows has ended with a summary.
            is_known: Says of a session whether there is one, or was.
        """
        found: Counter[str] = Counter()
        for name in self._reader.names(self._summaries):
            if name.endswith('.md') and _is_date(name.removesuffix('.md')):
                self._read_summary(name.removesuffix('.md'), found, is_known)
        for session_id in journals.headers:
            if journals.follower(session_id) and exchanges.get(session_id) and not found[session_id]:
                path = f'{self._summaries}/{split_session_id(session_id)[0]}.md'
                self._reader.reports.of(path, 'summary').problem(f'has no section of the session {session_id}')

    def _read_summary(self, day: str, found: Counter[str], is_known: Callable[[str], bool]) -> None:
        read = text(self._reader, f'{self._summaries}/{day}.md', 'summary')
        if read is None:
            return
        report, content = read
        sections = split_sections(content)[1]
        report.records = len(sections) or report.records
        at = 0
        for section in sections:
            session_id = section.session_id
            at = f'\n{content}'.index(f'\n## Session {session_id}', at)
            place = content.count('\n', 0, at) + 1, len(content[:at].encode())
            if split_session_id(session_id)[0].isoformat() != day:
                report.problem(f'has a section of the session {session_id}, which is of another day', *place)
            if found[session_id]:
                report.problem(f'has a second section of the session {session_id}', *place)
            if not is_known(session_id):
                report.problem(f'has a section of the session {session_id}, which is not known', *place)
            if section.degraded:
                report.note(f'the full summary of the session {session_id} is owed', *place)
            found[session_id] += 1
            at += 1


def _id_in(line: bytes) -> str:
    session_id = line.decode()
    split_session_id(session_id)
    return session_id


def _looks_like(line: bytes) -> str:
    return CUT_OFF if _BEGINNING_OF_ID.fullmatch(line) else left_by_a_crash(line)


def _is_date(name: str) -> bool:
    try:
        parse_date(name)
    except ValueError:
        return False
    return True
