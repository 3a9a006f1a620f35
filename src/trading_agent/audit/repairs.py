"""Mends what an audit has found, where there is no doubt how; whatever is replaced is kept beside it.

Each step is durable when it is done, and can be done again: a repair that was killed is simply begun once more.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from trading_agent import files
from trading_agent.audit.findings import FileReport, Mend, Reports, WorkspaceReport
from trading_agent.audit.folders import FILE_MODE, FOLDER_MODE
from trading_agent.audit.holder import LOCK_NAME, find_holder, said_in
from trading_agent.audit.workspace_audit import audit
from trading_agent.clock import utc_text
from trading_agent.errors import StorageError, TradingAgentError
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.damage import Damage
from trading_agent.memory.rollover import RolloverRecord, session_to_resume
from trading_agent.memory.session_state import SessionState, is_session_id, split_session_id
from trading_agent.memory.session_store import SessionStore

_ORDER: tuple[Mend, ...] = ('mode', 'sweep', 'seal', 'ids', 'state', 'index')

_INTENTS: dict[Mend, str] = {
    'seal': 'close its torn last line',
    'sweep': 'remove it',
    'ids': 'put the ids into it that it does not have, in front of the others',
    'index': 'set it aside and make it anew from the files',
}


class WorkspaceInUse(TradingAgentError):
    """Raised when a daemon, or another repair, holds the workspace. Nothing was changed."""

    def __init__(self, workspace: Path, pid: int | None) -> None:
        who = f'the process {pid}' if pid is not None else 'a process that is just starting'
        super().__init__(
            f'the workspace {workspace} is held by {who}', 'stop that daemon first: a repair needs the files to itself'
        )


class Step(msgspec.Struct, frozen=True):
    """One thing that is to be mended.

    Attributes:
        path: The file, within the workspace.
        what: What is to be done, or was.
        mend: How.
        kept: Where what was replaced is kept, within the workspace; None where nothing was replaced.
    """

    path: str
    what: str
    mend: Mend
    kept: str | None = None


class Left(msgspec.Struct, frozen=True):
    """A problem that a person has to decide on.

    Attributes:
        path: The file, within the workspace.
        what: What is wrong with it, and where.
    """

    path: str
    what: str


class Plan(msgspec.Struct, frozen=True):
    """What a repair does, or has done.

    Attributes:
        steps: What is mended, in this order.
        left: What is not.
    """

    steps: list[Step]
    left: list[Left]


def plan(workspace: Path, desk: str | None = None) -> Plan:
    """Returns what `repair` would do. Nothing is changed.

    Args:
        workspace: The workspace.
        desk: Only this desk; None for all, and what lies beside them.

    Raises:
        WorkspaceInUse: Somebody holds it.
        StorageError: It cannot be read.
    """
    holder = find_holder(workspace)
    if holder.is_there:
        raise WorkspaceInUse(workspace, holder.pid)
    return _plan(workspace, audit(workspace, desk, alone=True))


def repair(workspace: Path, desk: str | None = None) -> Plan:
    """Mends what can be mended without a doubt, and returns what was done and what is left.

    Args:
        workspace: The workspace, which is held meanwhile.
        desk: Only this desk; None for all, and what lies beside them.

    Raises:
        WorkspaceInUse: Somebody else holds it. Nothing was changed.
        StorageError: It cannot be read.
    """
    done: list[Step] = []
    failed: list[Left] = []
    with _held(workspace):
        for step in _plan(workspace, audit(workspace, desk, alone=True)).steps:
            try:
                done.append(_do(workspace, step))
            except (StorageError, OSError) as error:
                failed.append(Left(step.path, f'could not be mended: {error}'))
        # A line that could not be read before may tell of something else now.
        after = audit(workspace, desk, alone=True)
    return Plan(done, [*failed, *_problems(after)])


@contextmanager
def _held(workspace: Path) -> Iterator[None]:
    """Holds the workspace as a daemon does, so that none starts meanwhile."""
    lock = files.Lock(workspace / LOCK_NAME)
    holder = lock.acquire()
    if holder is not None:
        raise WorkspaceInUse(workspace, said_in(holder)[0])
    try:
        now = utc_text(datetime.now(UTC))
        said = {'pid': os.getpid(), 'started_at': now, 'run_id': 'repair', 'control_socket': None}
        lock.write(msgspec.json.encode(said) + b'\n')
        yield
    finally:
        lock.release()


# -- what is to be done ----------------------------------------------------------------------------------------


def _plan(workspace: Path, found: WorkspaceReport) -> Plan:
    steps: list[Step] = []
    left: list[Left] = []
    for reports in (*(desk.files for desk in found.desks), found.files):
        for report in reports:
            for finding in (*report.problems, *report.notes):
                what = _intent(workspace, reports, report, finding.mend) if finding.mend is not None else ''
                if finding.mend is not None and what:
                    steps.append(Step(report.path, what, finding.mend))
                elif finding in report.problems:
                    left.append(Left(report.path, finding.in_words))
    return Plan(sorted(steps, key=lambda step: _ORDER.index(step.mend)), left)


def _problems(found: WorkspaceReport) -> list[Left]:
    return [Left(report.path, finding.in_words) for report in found.all_files() for finding in report.problems]


def _intent(workspace: Path, reports: Reports, report: FileReport, mend: Mend) -> str:
    """Returns what is to be done about a finding; nothing where that is not certain."""
    if mend == 'mode':
        return f'give it the mode {FOLDER_MODE if report.kind == "folder" else FILE_MODE:04o}'
    if mend != 'state':
        return _INTENTS[mend]
    rollover = report.path.replace('state.json', 'rollover.json')
    if rollover in reports and reports.of(rollover, 'rollover').problems:
        return ''  # the two together say which session goes on
    state = _rebuilt_state((workspace / report.path).parent)
    return f'rebuild it: the session {state.session_id} goes on' if state is not None else ''


# -- doing it --------------------------------------------------------------------------------------------------


def _do(workspace: Path, step: Step) -> Step:
    path = workspace / step.path
    match step.mend:
        case 'seal':
            files.seal(path)
            return msgspec.structs.replace(step, what='closed its torn last line')
        case 'ids':
            added = _add_ids(path)
            return msgspec.structs.replace(step, what=f'put {added} id{"s" * (added > 1)} into it')
        case 'sweep':
            files.remove(path)
            return msgspec.structs.replace(step, what='removed it')
        case 'mode':
            mode = FOLDER_MODE if path.is_dir() else FILE_MODE
            path.chmod(mode)
            _sync(path)
            return msgspec.structs.replace(step, what=f'gave it the mode {mode:04o}')
        case 'state':
            return _rebuild_state(workspace, step)
        case 'index':
            return _rebuild_index(workspace, step)


def _sync(path: Path) -> None:
    with files.storage_errors('sync', path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _within(workspace: Path, path: Path | None) -> str | None:
    return None if path is None else str(path.relative_to(workspace))


def _ignore(_: Damage) -> None:
    """The audit tells what is damaged."""


def _add_ids(path: Path) -> int:
    """Puts the sessions that have a log or a journal into the list of ids; returns how many it did not have."""
    folders = (path.parent, path.parents[1] / 'journal')
    names = {name.partition('.')[0] for folder in folders for name in files.names_in(folder)}
    listed = SessionStore(path.parent, on_damage=_ignore).ids_given_out.read()
    newest = max(map(split_session_id, listed), default=(date.max, 0))
    here = sorted(filter(is_session_id, names.difference(listed)), key=split_session_id)
    added = [session_id for session_id in here if split_session_id(session_id) < newest]
    files.replace(path, ''.join(f'{session_id}\n' for session_id in added).encode() + (files.read(path) or b''))
    return len(added)


def _rebuilt_state(folder: Path) -> SessionState | None:
    """Returns the state that the next start of a desk would make; None where it is not certain which session it is."""
    store = SessionStore(folder, on_damage=_ignore)
    data = files.read(folder / 'rollover.json')
    record = None if data is None else msgspec.json.decode(data, type=RolloverRecord)
    logs, given_out = store.session_ids(), store.ids_given_out.read()
    session_id = session_to_resume(record, logs, given_out, store.today())
    # An id is written down before its log is made: one of the two alone is a loss, or came from elsewhere.
    if session_id not in logs or (given_out and session_id not in given_out):
        return None
    return SessionState(session_id, split_session_id(session_id)[0], {})


def _rebuild_state(workspace: Path, step: Step) -> Step:
    folder = (workspace / step.path).parent
    state = _rebuilt_state(folder)
    store = SessionStore(folder, on_damage=_ignore)
    kept = store.set_state_aside(datetime.now(UTC))
    if state is not None:
        store.save_state(state)
    what = f'rebuilt it: the session {state.session_id} goes on' if state is not None else 'set it aside'
    return msgspec.structs.replace(step, what=what, kept=_within(workspace, kept))


def _rebuild_index(workspace: Path, step: Step) -> Step:
    kept: list[Path] = []
    with SqliteIndex(workspace, lambda aside, _: kept.append(aside)) as index:
        index.verify()
        index.catch_up()
    what = 'made it anew from the files'
    return msgspec.structs.replace(step, what=what, kept=_within(workspace.absolute(), kept[0] if kept else None))
