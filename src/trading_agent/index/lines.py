"""How far a file has been read, and reading on from there."""

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from trading_agent import json_lines
from trading_agent.files import storage_errors
from trading_agent.index.session_files import Source

_COMPARED = 4096
"""So many bytes of what was read last, and the last line whole, are compared with what stands there later.

A line of a journal has the digest of the line before it, so that the last one speaks for all of them: also where a
power cut took lines that were read, and others as long were written in their place.
"""


_OF_NONE = '-'
"""The digest of what is in no file."""


class Place(msgspec.Struct, frozen=True):
    """How far a file has been read.

    Attributes:
        offset: Where the next line begins, in bytes.
        lines: How many lines were read.
        damaged: How many of them could not be used.
        digest: The digest of the last bytes before the offset, so that another file of that name is noticed.
        size: The size of the file when it was read to its end; 0 before.
        mtime_ns: When it had been written to by then.
    """

    offset: int = 0
    lines: int = 0
    damaged: int = 0
    digest: str = ''
    size: int = 0
    mtime_ns: int = 0

    def is_end_of(self, source: Source) -> bool:
        """Whether all whole lines that the file had when it was looked at have been read."""
        return (self.size, self.mtime_ns) == (source.size, source.mtime_ns)

    def behind(self, source: Source) -> int:
        """Returns how many bytes are left to read. What is behind the last newline is no line yet."""
        return 0 if self.is_end_of(source) else max(0, source.size - self.offset)

    def is_in(self, path: Path) -> bool:
        """Returns whether the file still holds, before the offset, what was read there.

        Raises:
            StorageError: It is there and cannot be read.
        """
        with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
            return os.fstat(file.fileno()).st_size >= self.offset and _digest(file.fileno(), self.offset) == self.digest
        return not self.offset


def _digest(descriptor: int, offset: int) -> str:
    begin = max(0, offset - _COMPARED)
    data = os.pread(descriptor, offset - begin, begin)
    while begin and data and data.find(b'\n', 0, -1) < 0:
        before = max(0, begin - len(data))  # as much again: a long line is read in few steps
        data = os.pread(descriptor, begin - before, before) + data
        begin = before
    return blake2b(data, digest_size=16).hexdigest() if data else ''


class Lines:
    """Reads on in a file, whole lines only, a bounded number of bytes at a time.

    Args:
        path: The file.
        source: The file as it was looked at: nothing behind the size that it had is read.
        place: How far it was read before.

    Attributes:
        source: The file.
        number: How many lines were read, in all.
        offset: Where the next line begins, in bytes.
        damaged: How many lines could not be used, in all; counted by whoever reads them.
        at_end: Whether there is no further whole line.
    """

    def __init__(self, path: Path, source: Source, place: Place) -> None:
        self.source = source
        self.number = place.lines
        self.offset = place.offset
        self.damaged = place.damaged
        self.at_end = False
        self._path = path
        self._digest = place.digest
        self._inode: int | None = None
        self._is_other = False  # replaced in the middle: what was read is of two files
        self._is_as_seen = False

    def take(self, most_bytes: int) -> Iterable[tuple[int, bytes]]:
        """Returns the next lines within so many bytes, each with its number from 1; one that is longer comes alone.

        Raises:
            StorageError: The file cannot be read.
        """
        number, lines, is_as_seen = self.number + 1, list[bytes](), False
        with (
            storage_errors('read', self._path),
            suppress(FileNotFoundError),
            self._path.open('rb', buffering=0) as file,
        ):
            lines = self._lines(file.fileno(), most_bytes)
            status = os.fstat(file.fileno())
            self._is_other |= self._inode not in (None, status.st_ino)
            self._inode = status.st_ino
            is_as_seen = (status.st_size, status.st_mtime_ns) == (self.source.size, self.source.mtime_ns)
            if lines:
                self.number += len(lines)
                self._digest = _digest(file.fileno(), self.offset)
        self.at_end = self.at_end or not lines
        self._is_as_seen = is_as_seen
        return enumerate(lines, number)

    def _lines(self, descriptor: int, most_bytes: int) -> list[bytes]:
        left = self.source.size - self.offset
        data = os.pread(descriptor, max(0, min(most_bytes, left)), self.offset)
        self.at_end = len(data) >= left
        whole = data.rfind(b'\n') + 1
        if whole:
            self.offset += whole
            return data[: whole - 1].split(b'\n')
        if self.at_end:
            return []
        end, line = next(json_lines.read_whole(self._path, self.offset), (self.source.size + 1, b''))
        self.at_end = end >= self.source.size
        if end > self.source.size:
            return []
        self.offset = end
        return [line]

    def place(self) -> Place:
        """Returns how far the file has been read now."""
        is_whole = self.at_end and self._is_as_seen and not self._is_other
        size, mtime_ns = (self.source.size, self.source.mtime_ns) if is_whole else (0, 0)
        digest = _OF_NONE if self._is_other else self._digest
        return Place(self.offset, self.number, self.damaged, digest, size, mtime_ns)
