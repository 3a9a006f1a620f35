r"""Files of JSON lines: written so that any text is storable, read line by line from the front or from the end.

Lines are split on `\n` alone: U+2028, U+2029 and U+0085 may stand inside a JSON string.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from trading_agent.files import storage_errors
from trading_agent.trigger import storable

MAX_LINE_BYTES = 64 << 20
"""The longest line that is read back; a longer one counts as damaged."""

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

    A line longer than 64 MiB comes as its first 64 MiB, so that it is damaged and its number still told. A missing
    file has no lines. Memory is bounded by the longest line.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        number, rest = 0, b''
        while data := file.read(block):
            first, *others = data.split(b'\n')
            if len(rest) <= MAX_LINE_BYTES:
                rest += first
            for following in others:
                number += 1
                if rest.strip():
                    yield number, rest[: MAX_LINE_BYTES + 1]
                rest = following
        if rest.strip():
            yield number + 1, rest[: MAX_LINE_BYTES + 1]


def read_whole(path: Path, start: int = 0, block: int = 1 << 20) -> Iterator[tuple[int, bytes]]:
    """Yields each line that has its newline, blank ones too, with the offset of the byte after it.

    Whoever remembers that offset goes on from there. A line longer than 64 MiB comes as its first 64 MiB.

    Args:
        path: The file; a missing one has no lines.
        start: Where a line begins, in bytes.
        block: How much is read at once, in bytes.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        file.seek(start)
        end, length, rest = start, 0, b''
        while data := file.read(block):
            first, *others = data.split(b'\n')
            length += len(first)
            if len(rest) <= MAX_LINE_BYTES:
                rest += first
            for following in others:
                end += length + 1
                yield end, rest[: MAX_LINE_BYTES + 1]
                length, rest = len(following), following


def read_back(path: Path, block: int = 1 << 16) -> Iterator[bytes]:
    """Yields each line that is not blank, the last one first; the newline is dropped.

    Only as much is read as is asked for. Of a line longer than 64 MiB the last part is yielded.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        begin, rest = os.fstat(file.fileno()).st_size, b''
        while begin:
            size = min(block, begin)
            begin -= size
            data = os.pread(file.fileno(), size, begin)
            *others, last = data.split(b'\n')
            # Once a line is too long, the parts before its end are not kept.
            rest = last + rest if len(rest) <= MAX_LINE_BYTES else rest
            while others:
                if rest.strip():
                    yield rest
                rest = others.pop()
        if rest.strip():
            yield rest
