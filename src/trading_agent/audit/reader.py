"""Reads files for an audit and changes nothing: each as it stood when it was opened, line by line with offsets.

What cannot be read is written down as a finding, and never raised: one bad file hides no other one.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from trading_agent import files
from trading_agent.audit.findings import FileReport, Kind, Reports
from trading_agent.errors import StorageError
from trading_agent.json_lines import MAX_LINE_BYTES, TOO_LONG

T = TypeVar('T')

UNREADABLE = (ValueError, RecursionError)
"""What decoding with msgspec raises for a line that is no such record."""

BEING_WRITTEN_SECONDS = 60.0
"""Beside a daemon, a file written to within so long may end in a line that is still being written."""

CUT_OFF = 'the beginning of a line that was never written to its end, as a crash leaves it'
"""What a line looks like whose writer was killed."""

LONGEST_DOCUMENT = 64 << 20
"""The longest file that is read as one whole, in bytes."""

_LONGEST_WHY = 300  # characters
_RAW = msgspec.json.Decoder(msgspec.Raw)


class Spot(NamedTuple):
    """Where a line is.

    Attributes:
        path: The file, within the workspace.
        line: The line's number, from 1.
        offset: Where it begins, in bytes.
    """

    path: str
    line: int
    offset: int


class Reader:
    """Reads files of one workspace.

    Args:
        workspace: The workspace.
        reports: Gets what is found.
        busy: Whether a daemon may be writing at the same time.

    Attributes:
        workspace: The workspace.
        reports: What was found.
        busy: Whether a daemon may be writing at the same time.
    """

    def __init__(self, workspace: Path, reports: Reports, *, busy: bool) -> None:
        self.workspace = workspace
        self.reports = reports
        self.busy = busy

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder, sorted; none where it is missing."""
        try:
            return sorted(files.names_in(self.workspace / folder))
        except StorageError as error:
            report = self.reports.of(folder, 'folder')
            if not report.problems:
                report.problem(f'cannot be listed: {os.strerror(error.errno or errno.EIO)}')
            return []

    @contextmanager
    def open(self, path: str, kind: Kind) -> Iterator[tuple[FileReport, FileIO] | None]:
        """Opens a file to be read; yields None where it is missing, or cannot be opened, which is written down.

        Args:
            path: The file, within the workspace.
            kind: What it is.
        """
        file: FileIO | None = None
        with suppress(FileNotFoundError, NotADirectoryError):
            try:
                # A pipe in the file's place must not be waited for.
                descriptor = os.open(self.workspace / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                file = FileIO(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
                if file is None:
                    os.close(descriptor)
                    self.reports.of(path, kind).problem('is no regular file')
            except (FileNotFoundError, NotADirectoryError):
                raise
            except OSError as error:
                self._unreadable(self.reports.of(path, kind), error)
        if file is None:
            yield None
            return
        with file:
            yield self.reports.of(path, kind), file

    def content(self, path: str, kind: Kind) -> tuple[FileReport, bytes] | None:
        """Returns what a small file holds; None as `open` does."""
        with self.open(path, kind) as opened:
            if opened is None:
                return None
            report, file = opened
            try:
                data = file.read(LONGEST_DOCUMENT + 1) or b''
            except OSError as error:
                self._unreadable(report, error)
                return None
        if len(data) > LONGEST_DOCUMENT:
            report.problem('is longer than 64 MiB')
            return None
        return report, data

    def records(
        self,
        report: FileReport,
        file: FileIO,
        decode: Callable[[bytes], T],
        errors: tuple[type[Exception], ...] = UNREADABLE,
        looks_like: Callable[[bytes], str] | None = None,
    ) -> Iterator[tuple[int, int, bytes, T]]:
        """Yields the number, the offset, the bytes and the record of each line that is one.

        Args:
            report: Gets the others.
            file: The file, at its beginning.
            decode: Reads a line.
            errors: What it raises for one that is no record.
            looks_like: Says what a crash leaves that a damaged line looks like, or nothing; None for `left_by_a_crash`.
        """
        try:
            for number, offset, line, ended in split(file):
                if not line or line.isspace():
                    continue
                if not ended and not self._is_last_line(report, file, number, offset, line):
                    return
                try:
                    if not line.isascii():
                        line.decode()  # a decoder may pass over what it does not look for
                    record = decode(line)
                except errors as error:
                    if ended:
                        _damaged(report, (number, offset), line, error, looks_like or left_by_a_crash)
                    continue
                report.records += 1
                yield number, offset, line, record
        except OSError as error:
            self._unreadable(report, error)

    def _is_last_line(self, report: FileReport, file: FileIO, number: int, offset: int, line: bytes) -> bool:
        """Writes down a line that has no newline; returns whether it can be one all the same."""
        if self.busy and abs(time.time() - os.fstat(file.fileno()).st_mtime) < BEING_WRITTEN_SECONDS:
            report.note('its last line is being written', number, offset)
            return False
        size = 'more than 64 MiB' if line is TOO_LONG else f'{len(line)} bytes'
        report.problem(f'ends in a torn line of {size}', number, offset, mend='seal')
        return True

    def _unreadable(self, report: FileReport, error: OSError) -> None:
        what = f'cannot be read: {error.strerror or os.strerror(error.errno or errno.EIO)}'
        if all(problem.what != what for problem in report.problems):  # it may have been tried again and again
            report.problem(what)


def split(file: FileIO, block: int = 1 << 20) -> Iterator[tuple[int, int, bytes, bool]]:
    """Yields each line of a file: its number, its offset, its bytes, and whether it has its newline.

    Nothing is read behind the size that the file has at the beginning. A line longer than 64 MiB comes as `TOO_LONG`.

    Raises:
        OSError: It cannot be read.
    """
    left = os.fstat(file.fileno()).st_size
    number, offset, length = 1, 0, 0
    parts: list[bytes] = []
    while left > 0 and (data := file.read(min(block, left))):
        left -= len(data)
        first, *others = data.split(b'\n')
        length += len(first)
        parts.append(first)
        if length > MAX_LINE_BYTES:
            parts.clear()
        if not others:
            continue
        yield number, offset, _joined(parts, length), True
        number, offset = number + 1, offset + length + 1
        last = others.pop()
        for line in others:
            yield number, offset, line, True
            number, offset = number + 1, offset + len(line) + 1
        parts, length = [last], len(last)
    if length:
        yield number, offset, _joined(parts, length), False


def _joined(parts: list[bytes], length: int) -> bytes:
    return b''.join(parts) if length <= MAX_LINE_BYTES else TOO_LONG


def _damaged(
    report: FileReport, place: tuple[int, int], line: bytes, error: Exception, looks_like: Callable[[bytes], str]
) -> None:
    if line is TOO_LONG:
        report.problem('is longer than 64 MiB', *place)
        return
    why = why_not(error)
    if remnant := looks_like(line):
        report.remnant(remnant, why, *place)
    else:
        report.problem(f'cannot be read: {why}', *place)


def why_not(error: Exception) -> str:
    """Returns in words why something cannot be decoded."""
    return f'{type(error).__name__}: {error}'[:_LONGEST_WHY]


def left_by_a_crash(line: bytes) -> str:
    """Returns in words what a crash may have left that a damaged line looks like; empty where it left no such thing."""
    if b'\0' in line:
        return 'zeros, as a power cut leaves them in the place of what was not synced'
    return CUT_OFF if line.startswith(b'{') and _is_truncated(line) else ''


def _is_truncated(line: bytes) -> bool:
    """Returns whether a line is the beginning of some JSON text, and not all of it."""
    try:
        _RAW.decode(line)
    except msgspec.DecodeError as error:
        return 'truncated' in str(error)
    except (ValueError, RecursionError):
        return False
    return False
