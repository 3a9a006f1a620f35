"""What lies about in the folders: temporary files, files that were set aside, and modes that are too wide."""

import os
import re
import stat
from collections.abc import Iterator

from trading_agent import files
from trading_agent.audit.findings import FileReport, Kind
from trading_agent.audit.holder import LOCK_NAME
from trading_agent.audit.reader import Reader
from trading_agent.index.database import FILE_NAME as INDEX_NAME
from trading_agent.memory.session_state import is_session_id

FILE_MODE, FOLDER_MODE = 0o600, 0o700

_TEMPORARY = re.compile(rf'{files.TEMPORARY.pattern}|\.{re.escape(INDEX_NAME)}\.tmp(?:-wal|-shm|-journal)?', re.DOTALL)
_SET_ASIDE = re.compile(r'.+\.damaged-\d{8}T\d{12}Z(?:-\d+)?(?:-wal|-shm)?')
_FOLDERS = (
    '',
    'journal',
    'memory_history',
    'notes',
    'sessions',
    'sessions/summaries',
    'skills',
    'skills/.archive',
    'skills/.proposed',
    'skills/.proposed/done',
    'triggers',
)
_OF_SESSIONS = ('journal', 'notes', 'sessions', 'triggers')
_NO_MODE = ('folder', 'temporary')
"""Folders are looked at by themselves; what is going to be removed needs no mode."""

_WRITTEN_BY_PEOPLE = ('memory', 'skill')


def look_through_desk(reader: Reader, desk: str, *, is_ours: bool) -> None:
    """Writes down what lies about in a desk's folders, and the modes of what was read there.

    The inbox is left out: what lies in there has the mode that its sender gave it.

    Args:
        reader: Reads files; its findings of the desk are complete.
        desk: The desk.
        is_ours: Whether this program has worked there, and not only another one that makes no modes.
    """
    for folder in _folders(reader, desk):
        path = f'desks/{desk}/{folder}'.rstrip('/')
        _look_at_names(reader, path, of_sessions=folder in _OF_SESSIONS)
        by_people = folder.startswith('skills') and '/.' not in folder
        _compare_mode(reader, path, FOLDER_MODE, 'folder', is_fault=is_ours and not by_people)
    for report in list(reader.reports):
        if report.kind not in _NO_MODE:
            is_fault = is_ours and report.kind not in _WRITTEN_BY_PEOPLE
            _compare_mode(reader, report.path, FILE_MODE, report.kind, is_fault=is_fault)


def _folders(reader: Reader, desk: str) -> Iterator[str]:
    yield from _FOLDERS
    for name in reader.names(f'desks/{desk}/skills'):
        path = reader.workspace / 'desks' / desk / 'skills' / name
        if not name.startswith('.') and path.is_dir() and not path.is_symlink():
            yield f'skills/{name}'


def look_through_workspace(reader: Reader) -> None:
    """Writes down what lies about in the workspace beside the desks, and the modes of what was read there."""
    _look_at_names(reader, '', of_sessions=False)
    is_ours = (reader.workspace / LOCK_NAME).exists()
    _compare_mode(reader, 'desks', FOLDER_MODE, 'folder', is_fault=is_ours)
    for report in list(reader.reports):
        if report.kind not in _NO_MODE:
            _compare_mode(reader, report.path, FILE_MODE, report.kind, is_fault=True)


def _look_at_names(reader: Reader, folder: str, *, of_sessions: bool) -> None:
    for name in reader.names(folder):
        path = f'{folder}/{name}'.lstrip('/')
        if _SET_ASIDE.fullmatch(name):
            reader.reports.of(path, 'set_aside').note('was set aside when it was found damaged')
        elif _TEMPORARY.fullmatch(name) and not reader.busy and not (reader.workspace / path).is_dir():
            note = 'was left by a writer that was killed: nothing of it was ever in use'
            reader.reports.of(path, 'temporary').note(note, mend='sweep')
        elif of_sessions and name.endswith('.jsonl') and not is_session_id(name.removesuffix('.jsonl')):
            _report_of(reader, path).note("has a name that is no session's: it was not read")


def _report_of(reader: Reader, path: str) -> FileReport:
    kinds: dict[str, Kind] = {'journal': 'journal', 'notes': 'notes', 'triggers': 'triggers'}
    return reader.reports.of(path, kinds.get(path.split('/')[-2], 'exchanges'))


def _compare_mode(reader: Reader, path: str, wanted: int, kind: Kind, *, is_fault: bool) -> None:
    try:
        mode = os.lstat(reader.workspace / path).st_mode
    except OSError:
        return
    is_right_kind = stat.S_ISDIR(mode) if kind == 'folder' else stat.S_ISREG(mode)
    needed = stat.S_IRWXU if kind == 'folder' else stat.S_IRUSR  # a person may keep what has ended from being changed
    if not is_right_kind or (mode & needed == needed and not stat.S_IMODE(mode) & ~wanted):
        return
    report = reader.reports.of(path, kind)
    tell = report.problem if is_fault else report.note
    tell(f'has the mode {stat.S_IMODE(mode):04o}, and is to have {wanted:04o}', mend='mode')
