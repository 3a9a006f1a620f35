"""The journal: what was said in a session, event by event, each in the file before anyone is shown it.

A file is a header and numbered records, each carrying the digest of the line before it, so that a line that was
changed, taken out or moved shows. A desk's turns and a program's own sessions are kept in the same format.

Example:
    manager = SessionManager()
    session_id = manager.create_session()
    manager.save_message(session_id, UserMessage('What did we decide on ABC?'))
    messages = manager.load_session(session_id)
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from trading_agent import files, json_lines
from trading_agent.clock import INDIA, utc_text
from trading_agent.conversation.chain import Break, Verification, verify
from trading_agent.conversation.records import (
    NO_RECORD,
    AnyRecord,
    MessageSaid,
    SessionHeader,
    decode_record,
    digest_of,
    messages_in,
    records,
)
from trading_agent.errors import DeskUnusable, TradingAgentError
from trading_agent.files import FileExists
from trading_agent.messages import Message

__all__ = [
    'Break',
    'InvalidSessionName',
    'Journal',
    'SessionExists',
    'SessionManager',
    'SessionNotFound',
    'Verification',
    'verify',
]

DEFAULT_FOLDER = '.agenix'
LONGEST_NAME = 200
"""The longest name of a session, in bytes: with its ending it must fit a file name."""


class InvalidSessionName(TradingAgentError, ValueError):
    """Raised when a session is to be named what cannot be a file's name."""


class SessionExists(TradingAgentError, FileExistsError):
    """Raised when a session is to be created that is there already: nothing of it is overwritten."""


class SessionNotFound(TradingAgentError, FileNotFoundError):
    """Raised when there is no session of that name."""


class Journal:
    """One session's file. Threads and processes that write to it take turns.

    Args:
        path: The file, which has a header.
        now: What time it is.

    Raises:
        StorageError: It cannot be read.
        DeskUnusable: A newer version of the program wrote it.
    """

    def __init__(self, path: Path, now: Callable[[], datetime] | None = None) -> None:
        self.path = path
        self._now = now or _utc_now
        self._writing = threading.Lock()
        self._size = -1
        self._synced: int | None = None
        self._unsynced = b''
        self._number = 0
        self._digest = ''
        self.header = _header_of(path)

    @classmethod
    def begin(cls, path: Path, header: SessionHeader, now: Callable[[], datetime] | None = None) -> 'Journal':
        """Creates a file with its header, durably.

        Raises:
            FileExistsError: There is one already. It is a `StorageError` too.
            StorageError: It could not be created; there is none.
        """
        files.make_folder(path.parent)
        files.create(path, json_lines.encode(header))
        return cls(path, now)

    def append(self, *new: AnyRecord, sync: bool = False) -> None:
        """Writes records at the end; all of them, or none.

        Args:
            new: The records. Their numbers, digests and times are filled in here.
            sync: Whether to wait until they, and all before them, are on the disk.

        Raises:
            StorageError: They could not be written or synced; the file holds what it held before.
        """
        with self._writing:
            number, digest, added = 0, '', b''

            def lines(size: int) -> bytes:
                nonlocal number, digest, added
                lost = self._lost(size)
                if size + len(lost) != self._size:  # begun by an earlier process, or written to by another
                    self._number, self._digest = _end_of(self.path)
                if self._synced is None:
                    self._synced = size
                number, digest = self._number, self._digest
                timestamp = utc_text(self._now())
                written = []
                for record in new:
                    number += 1
                    stamped = msgspec.structs.replace(record, number=number, previous=digest, timestamp=timestamp)
                    line = json_lines.encode(stamped)
                    digest = digest_of(line[:-1])
                    written.append(line)
                added = b''.join(written)
                return lost + added

            self._size = files.append(self.path, lines, sync=sync, synced=self._synced)
            self._number, self._digest = number, digest
            self._unsynced += added
            if sync:
                self._synced, self._unsynced = self._size, b''

    def _lost(self, size: int) -> bytes:
        """Returns what a sync that failed has taken from the end of the file: the disk did not even take it again."""
        if self._synced is None or size < self._synced or self._synced + len(self._unsynced) != self._size:
            return b''
        return self._unsynced[size - self._synced :]

    def close(self) -> str:
        """Puts all of it on the disk and returns the digest of its last line; appending reopens it.

        Raises:
            StorageError: It could not be synced.
        """
        with self._writing:
            files.append(self.path, self._lost, synced=self._synced)
            self._size, self._synced, self._unsynced = -1, None, b''
            return _end_of(self.path)[1]


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _end_of(path: Path) -> tuple[int, str]:
    """Returns the number and the digest of the last line that can be read; 0 for one without a number."""
    for line in json_lines.read_back(path):
        try:
            record = decode_record(line)
        except NO_RECORD:
            continue
        return (0 if isinstance(record, SessionHeader) else record.number), digest_of(line)
    return 0, ''


def _header_of(path: Path) -> SessionHeader | None:
    """Returns a file's header, or None where its first line is none.

    Raises:
        DeskUnusable: A newer version of the program wrote it.
    """
    _, line = next(json_lines.read(path, 1 << 12), (0, b''))
    try:
        header = decode_record(line)
    except NO_RECORD:
        return None
    if not isinstance(header, SessionHeader):
        return None
    if header.version.partition('.')[0] not in ('1', '2'):
        raise DeskUnusable(
            f'{path} has format {header.version}, and this program knows up to 2',
            'install the newer version of trading-agent again; nothing was changed',
        )
    return header


class SessionManager:
    """Keeps sessions of messages in a folder, one journal each.

    Args:
        session_dir: The folder, made where it is missing.
    """

    def __init__(self, session_dir: str | Path = DEFAULT_FOLDER) -> None:
        self.session_dir = Path(session_dir)
        files.make_folder(self.session_dir)

    def create_session(self, name: str | None = None) -> str:
        """Creates a session.

        Args:
            name: Its id; None for the time in India, such as `20261019_091000`.

        Returns:
            Its id.

        Raises:
            SessionExists: There is one already.
            InvalidSessionName: The name cannot be a file's name.
            StorageError: It could not be created.
        """
        stamp = f'{datetime.now(INDIA):%Y%m%d_%H%M%S}'
        for again in range(1, 1000):
            session_id = name if name is not None else stamp + (f'_{again}' if again > 1 else '')
            header = SessionHeader(session_id=session_id, created_at=utc_text(_utc_now()))
            try:
                Journal.begin(self._path(session_id), header)
            except FileExists:
                if name is not None:
                    break
            else:
                return session_id
        raise SessionExists(f'there is a session {session_id!r} in {self.session_dir}', 'choose another name')

    def journal(self, session_id: str) -> Journal:
        """Returns a session's journal, to be handed to a `Session` that is to be kept in it.

        Raises:
            FileNotFoundError: There is no such session.
        """
        return Journal(self._existing(session_id))

    def save_message(self, session_id: str, message: Message) -> None:
        """Adds a message to a session, durably.

        Raises:
            FileNotFoundError: There is no such session.
            StorageError: It could not be written; the session is as it was.
        """
        Journal(self._existing(session_id)).append(MessageSaid(message=message), sync=True)

    def load_session(self, session_id: str) -> list[Message]:
        """Returns a session's messages, oldest first. A line that cannot be read is left out.

        Raises:
            FileNotFoundError: There is no such session.
        """
        return messages_in(records(self._existing(session_id)))

    def list_sessions(self) -> list[dict[str, Any]]:
        """Returns `session_id`, `created_at` and `path` of each session, newest first.

        A file without a header is left out. A time without a zone, as the first version wrote it, counts as India's.
        """
        found = []
        for name in files.names_in(self.session_dir):
            if not name.endswith('.jsonl') or name.startswith('.'):
                continue
            path = self.session_dir / name
            try:
                header = _header_of(path)
                created = datetime.fromisoformat(header.created_at) if header else None
                if header is not None and created is not None:
                    created = created if created.tzinfo else created.replace(tzinfo=INDIA)
                    found.append((created, {'session_id': header.session_id, 'created_at': utc_text(created)}, path))
            except (TradingAgentError, ValueError, OverflowError):
                continue
        found.sort(key=lambda session: (session[0], session[2].name), reverse=True)
        return [session | {'path': str(path)} for _, session, path in found]

    def delete_session(self, session_id: str) -> None:
        """Removes a session; one that is not there is no error."""
        files.remove(self._path(session_id))

    def _path(self, session_id: str) -> Path:
        name = f'{session_id}.jsonl'
        plain = session_id and not session_id.startswith('.') and '/' not in session_id and session_id.isprintable()
        if not plain or len(name.encode(errors='replace')) > LONGEST_NAME:
            raise InvalidSessionName(
                f'{session_id[:80]!r} cannot be the name of a session',
                f'use 1 to {LONGEST_NAME - 6} printable characters without a slash, the first of them no dot',
            )
        return self.session_dir / name

    def _existing(self, session_id: str) -> Path:
        path = self._path(session_id)
        if not path.exists():
            raise SessionNotFound(f'Session not found: {session_id}', f'{self.session_dir} has no {path.name}')
        return path
