"""The files that the index is made from: of each session its journal and its log of exchanges."""

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from trading_agent import files
from trading_agent.config import DESK_NAME
from trading_agent.errors import StorageError
from trading_agent.files import storage_errors
from trading_agent.memory.session_state import is_session_id, split_session_id

Kind = Literal['journal', 'exchanges']
SessionKey = tuple[str, str]
"""A desk and a session of it."""

# The log comes first: a turn's end is in the journal before its exchange is in the log, so that a journal looked at
# later has the turn of every exchange that was there.
_FOLDERS: tuple[tuple[Kind, str], ...] = (('exchanges', 'sessions'), ('journal', 'journal'))


class Source(msgspec.Struct, frozen=True):
    """One file, as it stood when it was looked at.

    Attributes:
        name: Its path within the workspace.
        kind: What its lines are.
        size: Its size in bytes.
        mtime_ns: When it was last written to, in nanoseconds.
    """

    name: str
    kind: Kind
    size: int
    mtime_ns: int


class SessionFiles(msgspec.Struct, frozen=True):
    """The files of one session; the journal was looked at after the log.

    Attributes:
        desk: The desk.
        session_id: The session.
        sources: Those of its two files that are there, the journal first.
    """

    desk: str
    session_id: str
    sources: tuple[Source, ...]

    @property
    def key(self) -> SessionKey:
        """The desk and the session."""
        return self.desk, self.session_id

    @property
    def size(self) -> int:
        """The bytes of both files."""
        return sum(source.size for source in self.sources)


class Snapshot:
    """Every session's files, as they stood at one time, the newest sessions first.

    Args:
        workspace: The workspace.
        desk: Only of this desk; None for all.
        sessions: Only these sessions, each as desk and session id; None for all.
        session_id: Only this session, of any desk; None for all.

    Attributes:
        desks: The desks that have a folder.
        found: The sessions that have files.
    """

    def __init__(
        self,
        workspace: Path,
        desk: str | None = None,
        sessions: Collection[SessionKey] | None = None,
        session_id: str | None = None,
    ) -> None:
        self._workspace = workspace
        self._desk = desk
        self._sessions = sessions
        self._session_id = session_id
        self._failures: list[StorageError] = []
        self.desks: list[str] = []
        for name in sorted(filter(DESK_NAME.fullmatch, files.names_in(workspace / 'desks'))):
            folder = workspace / 'desks' / name
            with self.failures(), storage_errors('look at', folder):
                if not folder.is_dir():
                    continue
            self.desks.append(name)  # one that cannot be looked at is not gone
        self._readable: set[str] = set()
        found: list[SessionFiles] = []
        for name in self.desks:
            only = None if session_id is None else [session_id]
            if sessions is not None:
                only = sorted({each for of, each in sessions if of == name})
            if desk in (None, name) and only != []:
                with self.failures():
                    found += sessions_in(workspace, name, only)
                    self._readable.add(name)
        self.found = sorted(found, key=lambda session: split_session_id(session.session_id), reverse=True)

    def gone(self, known: Iterable[SessionKey]) -> list[SessionKey]:
        """Returns those sessions of which there are no files any more."""
        there = {session.key for session in self.found}
        unreadable = set(self.desks) - self._readable
        return [
            key
            for key in known
            if key not in there
            and key[0] not in unreadable
            and self._desk in (None, key[0])
            and self._session_id in (None, key[1])
            and (self._sessions is None or key in self._sessions)
        ]

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Keeps a failure to read one desk's files from holding up the others."""
        try:
            yield
        except StorageError as error:
            if not error.path.is_relative_to(self._workspace / 'desks'):
                raise
            self._failures.append(error)

    def raise_first(self) -> None:
        """Raises the first of these failures."""
        if self._failures:
            raise self._failures[0]


def sessions_in(workspace: Path, desk: str, only: Collection[str] | None = None) -> list[SessionFiles]:
    """Looks at the files of a desk's sessions.

    Args:
        workspace: The workspace.
        desk: The desk.
        only: Only these sessions; None for all.

    Raises:
        StorageError: A folder cannot be read.
    """
    found: dict[str, tuple[Source, ...]] = {}
    for kind, folder in _FOLDERS:
        place = f'desks/{desk}/{folder}'
        for session_id, status in _files_in(workspace / place, only):
            source = Source(f'{place}/{session_id}.jsonl', kind, status.st_size, status.st_mtime_ns)
            found[session_id] = (source, *found.get(session_id, ()))
    return [SessionFiles(desk, session_id, sources) for session_id, sources in found.items()]


def _files_in(folder: Path, only: Collection[str] | None) -> Iterator[tuple[str, os.stat_result]]:
    if only is None:
        names = files.names_in(folder)
        only = [name.removesuffix('.jsonl') for name in names if name.endswith('.jsonl')]
    for session_id in filter(is_session_id, only):
        path = f'{folder}/{session_id}.jsonl'
        with storage_errors('look at', Path(path)), suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(path)  # noqa: PTH116 - thousands of them, again and again
            if stat.S_ISREG(status.st_mode):
                yield session_id, status
