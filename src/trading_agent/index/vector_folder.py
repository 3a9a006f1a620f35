"""The folder of a ChromaDB collection: opened by one process at a time, and begun anew when it is damaged.

Chroma writes the files of its vector graph in place. A process that is killed meanwhile leaves files that can crash
the next one that loads them, so the checksums of each state that was written whole are kept, and files that are not as
recorded are never loaded: the folder is set aside, and an empty one made. Nothing in here opens a network connection.
"""

import errno
import hashlib
import importlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from trading_agent import files
from trading_agent.errors import StorageError, TradingAgentError
from trading_agent.index.embedding import SemanticUnavailable

_VERSION = 1
_STATE = 'state.json'
_DATABASE = 'chroma.sqlite3'
_COLLECTION = 'messages'
_LEAST_FREE_BYTES = 1 << 20
_POLL_SECONDS = 0.05

# Announcements come in hundreds that are nearly the same; with Chroma's usual numbers whole groups are never found.
_GRAPH = {'space': 'cosine', 'ef_search': 1000, 'ef_construction': 200, 'max_neighbors': 32, 'num_threads': 1}

# What SQLite says that is no damage, see https://www.sqlite.org/rescode.html
_SQLITE_CODE = re.compile(r'\(code: (\d+)\)')
_NO_DAMAGE = {
    5: errno.EBUSY,
    6: errno.EBUSY,
    7: errno.ENOMEM,
    8: errno.EROFS,
    10: errno.EIO,
    13: errno.ENOSPC,
    14: errno.EACCES,
}


class VectorsBusy(TradingAgentError):
    """Raised when another process has the folder open and does not let go of it in time."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f'{folder} is in use by process {holder or "unknown"}',
            'try again when that process has ended; search by full text meanwhile',
        )


class VectorsDamaged(TradingAgentError):
    """Raised when the folder turned out to be damaged while it was used: an empty one is in its place now.

    Attributes:
        aside: Where the damaged folder is; None when it was gone.
    """

    def __init__(self, folder: Path, reason: str, aside: Path | None) -> None:
        super().__init__(
            f'{folder} was damaged: {reason}',
            f'it is made anew; {aside} can be deleted' if aside else 'it is made anew',
        )
        self.aside = aside


class VectorFolder:
    """The folder, open; its threads take turns.

    Args:
        folder: The folder, made where it is missing. A lock file stays beside it.
        model: The name of the model whose vectors are in it.
        wait: How long to wait for another process that has it, in seconds.
        on_damage: Is told where a folder that is damaged, or of another version or model, was moved to.

    Attributes:
        marks: What the user of this folder wants to keep with the vectors; written by `save`.

    Raises:
        SemanticUnavailable: ChromaDB is missing or does not load.
        VectorsBusy: Another process has the folder.
        StorageError: The disk or its permissions are in the way.
    """

    def __init__(self, folder: Path, model: str, wait: float, on_damage: Callable[[Path], None] | None) -> None:
        self._chromadb = _import_chromadb()
        self._folder = folder.absolute()
        self._model = model
        self._on_damage = on_damage
        self._turn = threading.RLock()
        self._client: Any = None
        self._collection: Any = None
        self._checked: dict[Path, tuple[tuple[int, ...], str]] = {}
        self.marks: dict[str, dict[str, int]] = {}
        files.make_folder(self._folder.parent)
        self._lock = files.Lock(self._folder.with_name(f'{self._folder.name}.lock'))
        self._acquire(wait)
        try:
            self._open_or_begin_anew()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the folder. Closing twice is no error."""
        with self._turn:
            self._close_client()
            self._lock.release()

    @contextmanager
    def using(self, operation: str) -> Iterator[Any]:
        """Yields the collection, to this thread alone; `operation` is what an error says could not be done.

        Raises:
            VectorsDamaged: The folder is damaged or gone. `marks` and the collection are empty now.
            StorageError: The disk or its permissions are in the way.
        """
        with self._turn:
            try:
                if not (self._folder / _DATABASE).exists():
                    raise _Unusable('its database is gone')
                yield self._collection
            except BaseException as error:
                errors = self._chromadb.errors
                if not _is_damage(error, (errors.InternalError, errors.NotFoundError)):
                    raise
                self._raise_if_the_disk_failed(operation, error)
                reason = str(error).partition('\n')[0][:200]
                raise VectorsDamaged(self._folder, reason, self._begin_anew()) from error

    def save(self, count: int | None = None) -> None:
        """Makes durable the marks and what the folder holds. Call it within `using`, after each change.

        Args:
            count: How many vectors are there at least; None asks the collection.
        """
        count = self._collection.count() if count is None else count
        state = _State(self._model, _VERSION, count, self.marks, self._checksums())
        files.replace(self._folder / _STATE, msgspec.json.encode(state))

    def _acquire(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        while (holder := self._lock.acquire()) is not None:
            if time.monotonic() >= deadline:
                raise VectorsBusy(self._folder, holder.decode(errors='replace').strip())
            time.sleep(_POLL_SECONDS)
        self._lock.write(f'{os.getpid()}\n'.encode())

    def _open_or_begin_anew(self) -> None:
        try:
            self._open()
        except BaseException as error:
            if not _is_damage(error, (self._chromadb.errors.ChromaError, ValueError, LookupError)):
                raise
            self._raise_if_the_disk_failed('open', error)
            self._begin_anew()

    def _begin_anew(self) -> Path | None:
        """Sets the folder aside, where it is still there, and opens an empty one."""
        self._close_client()
        aside = None
        if self._folder.exists():
            name = f'{self._folder.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}'
            aside = self._folder.with_name(name)
            files.move(self._folder, aside)
            if self._on_damage:
                self._on_damage(aside)
        self._checked = {}
        self._open()
        return aside

    def _open(self) -> None:
        files.make_folder(self._folder)
        self._folder.chmod(0o700)
        files.sweep(self._folder)
        if not files.names_in(self._folder):
            self.marks = {}
            files.replace(self._folder / _STATE, msgspec.json.encode(_State(self._model)))
        state = self._read_state()
        # Without a word of what environment variables and a file `.env` hold for servers of Chroma.
        settings = self._chromadb.config.Settings.model_construct(anonymized_telemetry=False)
        try:
            self._client = self._chromadb.PersistentClient(str(self._folder), settings)
        except BaseException:
            # One that failed to open is kept, broken, for whoever opens the same folder next.
            self._chromadb.api.client.SharedSystemClient.clear_system_cache()
            raise
        self._collection = self._client.get_or_create_collection(
            _COLLECTION, configuration={'hnsw': _GRAPH}, embedding_function=None
        )
        count = self._collection.count()
        if count < state.vectors:
            raise _Unusable(f'{state.vectors - count} vectors are missing')
        self.marks = state.marks
        if self._checksums() != state.files:  # what was not in the graph yet is now
            self.save(count)

    def _read_state(self) -> '_State':
        data = files.read(self._folder / _STATE)
        if data is None:
            raise _Unusable('it does not say what is in it')
        try:
            state = msgspec.json.decode(data, type=_State)
        except msgspec.DecodeError as error:
            raise _Unusable(f'{_STATE}: {error}') from error
        if (state.version, state.model) != (_VERSION, self._model):
            raise _Unusable(f'it is of version {state.version} and model {state.model}')
        if not self._is_whole(state.files):
            raise _Unusable('the graph was not written whole')
        return state

    def _is_whole(self, recorded: dict[str, tuple[int, str]]) -> bool:
        """Whether the graph is as recorded. A torn file may claim to have hundreds of gigabytes: sizes come first."""
        with files.storage_errors('read', self._folder):
            sizes = {str(path.relative_to(self._folder)): path.stat().st_size for path in self._graph()}
        return sizes == {name: size for name, (size, _) in recorded.items()} and self._checksums() == recorded

    def _graph(self) -> list[Path]:
        return sorted(self._folder.glob('*/*'))

    def _checksums(self) -> dict[str, tuple[int, str]]:
        """Returns size and checksum of each file of the graph. One that was not touched is not read again."""
        found = {}
        with files.storage_errors('read', self._folder):
            for path in self._graph():
                about = path.stat()
                untouched = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
                known, checksum = self._checked.get(path, ((), ''))
                if known != untouched:
                    with path.open('rb') as file:
                        checksum = hashlib.file_digest(file, 'sha256').hexdigest()
                    self._checked[path] = (untouched, checksum)
                found[str(path.relative_to(self._folder))] = (about.st_size, checksum)
        return found

    def _raise_if_the_disk_failed(self, operation: str, error: BaseException) -> None:
        if isinstance(error, _Unusable) or not (self._folder / _DATABASE).is_file():
            return
        code = _SQLITE_CODE.search(str(error))
        number = _NO_DAMAGE.get(int(code[1]) & 0xFF) if code else None
        if number is None and shutil.disk_usage(self._folder).free < _LEAST_FREE_BYTES:
            number = errno.ENOSPC
        if number is not None:
            raise StorageError(operation, self._folder, OSError(number, os.strerror(number))) from error

    def _close_client(self) -> None:
        client, self._client, self._collection = self._client, None, None
        if client is not None:
            with suppress(Exception):
                client.close()


def _is_damage(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    # A panic within Chroma is no Exception.
    return isinstance(error, (_Unusable, *kinds)) or type(error).__name__ == 'PanicException'


class _State(msgspec.Struct, forbid_unknown_fields=True):
    """What the folder holds: how many vectors at least, the marks, and each file of the graph."""

    model: str
    version: int = _VERSION
    vectors: int = 0
    marks: dict[str, dict[str, int]] = {}
    files: dict[str, tuple[int, str]] = {}


class _Unusable(Exception):
    """Raised within this module when the folder's content must not be used."""


def _import_chromadb() -> ModuleType:
    try:
        return importlib.import_module('chromadb')
    except (ImportError, ValueError, OSError) as error:  # it reads the environment when it is imported
        raise SemanticUnavailable(f'chromadb: {error}') from error
