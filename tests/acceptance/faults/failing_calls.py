"""System calls that fail when they are told to, for a program in this process: everything that it does to its files.

A sync that fails takes with it what it was to sync, as a disk does: what is not written once more before the next one
is not on the disk, whatever that one says. See fsync(2).
"""

import errno
import fcntl
import io
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Way = Literal['once', 'all for a while', 'this one for a while', 'half', 'short']
"""How calls fail: one of them; from one on, until `mend`, all that the error can come to, or all of that name; a write
that has written half; or no failure at all, but a write that writes half and says so."""

_OPENING = frozenset({'open', 'io.open', 'listdir', 'scandir'})
_GROWING = frozenset({'open', 'pwrite', 'fsync', 'fdatasync', 'mkdir', 'link', 'replace', 'rename'})
_NAMING = _OPENING | {'replace', 'rename', 'link', 'unlink', 'mkdir', 'chmod', 'stat'}
_OF_DESCRIPTORS = frozenset({'pread', 'pwrite', 'fsync', 'fdatasync', 'ftruncate', 'fchmod', 'fstat', 'close', 'flock'})

KINDS: dict[int, frozenset[str]] = {
    errno.EIO: _OF_DESCRIPTORS | _NAMING,
    errno.ENOSPC: _GROWING,
    errno.EMFILE: _OPENING,
    errno.EACCES: _NAMING,
}
"""Which calls fail with each error."""


@dataclass(frozen=True)
class Plan:
    """Which call fails, and how.

    Attributes:
        number: The how-many-th of those that the error can come to, from 1.
        error: The error number.
        way: How.
        of: A regular expression: only calls that are like it, each its name and its file, `fdatasync desks/main/…`.
    """

    number: int
    error: int
    way: Way
    of: str = ''

    @property
    def kinds(self) -> frozenset[str]:
        """Which calls can fail so."""
        return frozenset({'pwrite'}) if self.way in ('half', 'short') else KINDS[self.error]

    def __str__(self) -> str:
        """Says what repeats it."""
        return f'{errno.errorcode[self.error]} {self.way}, call {self.number}' + (f' of {self.of}' if self.of else '')


class FailingCalls:
    """The calls that this process makes on the files below a folder.

    Args:
        folder: The folder.
        plan: What fails; None for nothing, and calls are only counted.

    Attributes:
        counted: How many calls there were, by name.
        failed: Each call that failed, in words.
    """

    def __init__(self, folder: Path, plan: Plan | None = None) -> None:
        self._folder = f'{folder}/'
        self._plan = plan
        self._mended = plan is None
        self._descriptors: dict[int, str] = {}
        self._unsynced: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._gone: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._real: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._aside = threading.local()
        self.counted: Counter[str] = Counter()
        self._number = 0
        self._first = ''
        self.failed: list[str] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stands between the program and the system."""
        names = sorted(KINDS[errno.EIO] - {'io.open', 'flock'})
        places: list[tuple[Any, str, str]] = [(os, name, name) for name in names]
        places += [(io, 'open', 'io.open'), (fcntl, 'flock', 'flock')]
        for module, name, kind in places:
            self._real[kind] = getattr(module, name)
            setattr(module, name, self._instead_of(kind))
        try:
            yield
        finally:
            for module, name, kind in places:
                setattr(module, name, self._real[kind])

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Lets what this thread does in the block neither fail nor count: it is not the program that does it."""
        self._aside.on = True
        try:
            yield
        finally:
            self._aside.on = False

    def mend(self) -> None:
        """Lets nothing fail any more."""
        self._mended = True

    @property
    def failing(self) -> bool:
        """Whether calls have begun to fail and still do."""
        return bool(self.failed) and not self._mended

    def is_synced(self, path: Path, words: bytes) -> bool:
        """Returns whether nothing with these words is left that was written to a file and not synced."""
        with self._lock:
            return not any(words in part for _, part in self._unsynced.get(str(path), []))

    def lost(self) -> list[str]:
        """Returns the files with bytes that a failed sync took, and that were not written again."""
        found = []
        for path, parts in self._gone.items():
            if path.endswith('.tmp'):
                continue
            data = Path(path).read_bytes() if Path(path).is_file() else b''
            if any(data[offset : offset + len(part)] == part for offset, part in parts):
                found.append(path.removeprefix(self._folder))
        return found

    # -- in place of the calls ---------------------------------------------------------------------------------

    def _instead_of(self, kind: str) -> Callable[..., Any]:
        real = self._real[kind]

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever that call takes
            path = self._path_of(kind, arguments)
            if path is None:
                return real(*arguments, **options)
            with self._lock:
                fails = self._fails(kind, path)
                if kind == 'close':  # its number may be another file's as soon as it is closed
                    del self._descriptors[arguments[0]]
            if fails:
                self._fail(kind, path, arguments)
                arguments = (arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            result = real(*arguments, **options)
            with self._lock:
                self._done(kind, path, arguments, result)
            return result

        return call

    def _path_of(self, kind: str, arguments: tuple[Any, ...]) -> str | None:
        """Returns which file of the folder a call is about; None for another one."""
        if not arguments or getattr(self._aside, 'on', False):
            return None
        if kind in _OF_DESCRIPTORS:
            return self._descriptors.get(arguments[0])
        if not isinstance(arguments[0], str | os.PathLike):
            return None
        path = os.fspath(arguments[0])
        return path if isinstance(path, str) and path.startswith(self._folder) else None

    def _fails(self, kind: str, path: str) -> bool:
        self.counted[kind] += 1
        plan = self._plan
        called = f'{kind} {path.removeprefix(self._folder)}'
        if plan is None or self._mended or kind not in plan.kinds or not re.match(plan.of, called):
            return False
        self._number += 1
        again = plan.way == 'all for a while' or (plan.way == 'this one for a while' and kind == self._first)
        if self._number != plan.number and not (again and self._number > plan.number):
            return False
        self._first = self._first or kind
        if plan.way != 'short':
            self.failed.append(called)
        return True

    def _fail(self, kind: str, path: str, arguments: tuple[Any, ...]) -> None:
        assert self._plan is not None
        if self._plan.way == 'short':
            return
        if self._plan.way == 'half':
            descriptor, data, offset = arguments
            self._real['pwrite'](descriptor, bytes(data)[: len(data) // 2], offset)
        if kind == 'close':
            self._real['close'](*arguments)  # it is closed whatever it says, close(2)
        if kind in ('fsync', 'fdatasync'):
            with self._lock:
                self._gone[path] += self._unsynced.pop(path, [])
        raise OSError(self._plan.error, os.strerror(self._plan.error), path)

    def _done(self, kind: str, path: str, arguments: tuple[Any, ...], result: Any) -> None:  # noqa: ANN401
        match kind:
            case 'open':
                self._descriptors[result] = path
            case 'pwrite':
                written, offset = bytes(arguments[1])[:result], arguments[2]
                self._unsynced[path].append((offset, written))
                self._gone[path] = [
                    (begin, part)
                    for begin, part in self._gone[path]
                    if begin < offset or begin + len(part) > offset + len(written)
                ]
            case 'fsync' | 'fdatasync':
                self._unsynced.pop(path, None)
            case 'replace' | 'rename':
                target = os.fspath(arguments[1])
                for known in (self._unsynced, self._gone):
                    known[target] = known.pop(path, [])
            case _:
                pass
