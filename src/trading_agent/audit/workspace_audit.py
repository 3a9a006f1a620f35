"""All of a workspace, or one desk of it: whether what is on disk is whole and agrees with itself."""

from collections.abc import Callable
from pathlib import Path

from trading_agent import files
from trading_agent.audit.desk_audit import audit_desk
from trading_agent.audit.documents import read_disabled_backends
from trading_agent.audit.findings import WorkspaceReport
from trading_agent.audit.folders import look_through_workspace
from trading_agent.audit.holder import LOCK_NAME, find_holder
from trading_agent.audit.reader import Reader
from trading_agent.audit.search_index import look_at_index
from trading_agent.config import DESK_NAME

_TRIES = 3


def audit(
    workspace: Path,
    desk: str | None = None,
    *,
    alone: bool = False,
    on_desk: Callable[[int, int, str], None] = lambda _done, _total, _name: None,
) -> WorkspaceReport:
    """Reads everything on disk, and returns what was found. Nothing is changed; a daemon may work at the same time.

    Args:
        workspace: The workspace.
        desk: Only this desk, which has a folder; None for all, and for what lies beside them.
        alone: Whether the caller itself holds the workspace, so that nobody else writes.
        on_desk: Is told how many desks are done, of how many, and which is next.

    Raises:
        StorageError: The folder of the desks cannot be listed.
    """
    if alone:
        return _audit(workspace, desk, busy=False, on_desk=on_desk)
    before = find_holder(workspace)
    busy = before.is_there
    for _ in range(_TRIES):
        report = _audit(workspace, desk, busy=busy, on_desk=on_desk)
        after = find_holder(workspace)
        if busy or (after == before and not after.is_there):
            break
        busy = True  # a daemon came or went meanwhile
    return report


def _audit(
    workspace: Path, desk: str | None, *, busy: bool, on_desk: Callable[[int, int, str], None]
) -> WorkspaceReport:
    report = WorkspaceReport()
    names = [desk] if desk is not None else _desks(workspace)
    for done, name in enumerate(names):
        on_desk(done, len(names), name)
        report.desks.append(audit_desk(workspace, name, busy=busy))
    if desk is None:
        reader = Reader(workspace, report.files, busy=busy)
        if busy:
            report.files.of(LOCK_NAME, 'lock').note('a daemon holds the workspace: what it is writing is not judged')
        read_disabled_backends(reader)
        look_at_index(workspace, report.files)
        look_through_workspace(reader)
    on_desk(len(names), len(names), '')
    return report


def _desks(workspace: Path) -> list[str]:
    return sorted(name for name in files.names_in(workspace / 'desks') if DESK_NAME.fullmatch(name))
