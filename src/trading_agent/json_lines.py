r"""Files of JSON lines: written so that any text is storable, read line by line from the front or from the end.

Lines are split on `\n` alone: U+2028, U+2029 and U+0085 may stand inside a JSON string.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

import msgspec

from trading_agent.files import storage_errors
from trading_agent.trigger import storable

MAX_LINE_BYTES = 64 << 20
"""The longest line that is read back; a longer one counts as damaged."""

TOO_LONG = b'\xff'
"""What a longer line is read as. It is no text, so that whoever decodes it finds it damaged."""

_ENCODER = msgspec.json.Encoder()

# The first reader of these layouts splits lines with str.splitlines(), for which these are line ends too.
_LINE_ENDS = {char.encode(): f'\\u{ord(char):04x}'.encode() for char in '\u0085\u2028\u2029'}


def encode(record: object) -> bytes:
    """Returns a record as one line, its newline included. A lone surrogate becomes U+FFFD."""
    try:
        line = _ENCODER.encode(record)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(record)
        line = storable(json.dumps(plain, ensure_ascii=False, separators=(',', ':'))).encode()
    for raw, escaped in _LINE_ENDS.items():
        if raw in line:
            line = line.replace(raw, escaped)
    return line + b'\n'


def read(path: Path, block: int = 1 << 20) -> Iterator[tuple[int, bytes]]:
    """Yields each line that is not blank with its number, from 1; the newline is dropped.

    A line longer than 64 MiB comes as `TOO_LONG`. A missing file has no lines. Memory is bounded: by twice the longest
    line, for it comes in pieces.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        for number, (_, line, _) in enumerate(_split(file, block), 1):
            if line and not line.isspace():
                yield number, line


def read_whole(path: Path, start: int = 0, block: int = 1 << 20, *, rest: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yields each line that has its newline, blank ones too, with the offset of the byte after it.

    Whoever remembers that offset goes on from there. A line longer than 64 MiB comes as `TOO_LONG`.

    Args:
        path: The file; a missing one has no lines.
        start: Where a line begins, in bytes.
        block: How much is read at once, in bytes.
        rest: Whether what stands behind the last newline comes too.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        file.seek(start)
        end = start
        for length, line, ended in _split(file, block):
            end += length + ended
            if ended or (rest and length):
                yield end, line


def _split(file: FileIO, block: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yields the length of each line, the line, and whether it has its newline: what is behind the last one has not."""
    parts: list[bytes] = []
    length = 0
    while data := file.read(block):
        first, *others = data.split(b'\n')
        length += len(first)
        _keep(parts, first, length)
        if others:
            yield length, _joined(parts, length), True
            last = others.pop()
            for line in others:
                yield len(line), line if len(line) <= MAX_LINE_BYTES else TOO_LONG, True
            parts, length = [last], len(last)
    yield length, _joined(parts, length), False


def _keep(parts: list[bytes], part: bytes, length: int) -> None:
    """Adds a part to those of a line that has this length by now; of one that is too long none is kept."""
    parts.append(part)
    if length > MAX_LINE_BYTES:
        parts.clear()


def _joined(parts: list[bytes], length: int) -> bytes:
    return b''.join(parts) if length <= MAX_LINE_BYTES else TOO_LONG


def read_back(path: Path, block: int = 1 << 16) -> Iterator[bytes]:
    """Yields each line that is not blank, the last one first; the newline is dropped.

    Only as much is read as is asked for. A line longer than 64 MiB comes as `TOO_LONG`.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        for line in _split_back(file.fileno(), block):
            if line and not line.isspace():
                yield line


def _split_back(descriptor: int, block: int) -> Iterator[bytes]:
    begin = os.fstat(descriptor).st_size
    parts: list[bytes] = []  # of the line at hand, its end first
    length = 0
    while begin:
        size = min(block, begin)
        begin -= size
        *others, last = os.pread(descriptor, size, begin).split(b'\n')
        length += len(last)
        _keep(parts, last, length)
        if others:
            yield _joined(parts[::-1], length)
            first, *whole = others
            for line in reversed(whole):
                yield line if len(line) <= MAX_LINE_BYTES else TOO_LONG
            parts, length = [first], len(first)
    yield _joined(parts[::-1], length)
