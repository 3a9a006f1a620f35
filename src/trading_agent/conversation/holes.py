"""What a power cut may leave of a journal's newest records: later ones without an earlier one.

What was appended and not synced comes to the disk in any order. In the place of what did not, where something behind it
did, there are zeros, which are in no JSON text.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trading_agent import json_lines
from trading_agent.conversation.records import (
    NO_RECORD,
    AnyLine,
    SessionHeader,
    ToolRequested,
    TurnEnded,
    decode_record,
    digest_of,
)
from trading_agent.files import storage_errors

_BLOCK = 1 << 20


def hole_in(path: Path) -> tuple[int, int] | None:
    """Returns where a line has a hole behind which records hang in the air: they do not follow what is before it.

    Records of which one was synced do not hang by a power cut, for everything before was synced with it: where they do
    not follow, somebody has changed the file, and that is to show.

    Returns:
        The line's number, from 1, and where it begins, in bytes; None where there is no such line.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    if not _has_zeros(path):
        return None
    hole: tuple[int, int] | None = None
    hanging: list[AnyLine] = []
    begin, digest = 0, ''
    for number, (end, line) in enumerate(json_lines.read_whole(path, rest=True), 1):
        if b'\0' in line:
            hole = hole or (number, begin)
        with suppress(*NO_RECORD):
            record = decode_record(line)
            if hole is not None and not hanging and _follows(record, digest):
                hole = None  # the chain goes on behind it: a torn line that was closed long ago
            elif hole is not None:
                hanging.append(record)
            digest = digest_of(line)
        begin = end
    return hole if hanging and not _was_synced(hanging[:-1]) else None


def _has_zeros(path: Path) -> bool:
    with storage_errors('read', path), suppress(FileNotFoundError), path.open('rb', buffering=0) as file:
        while block := file.read(_BLOCK):
            if b'\0' in block:
                return True
    return False


def _follows(record: AnyLine, digest: str) -> bool:
    return isinstance(record, SessionHeader) or not record.number or record.previous == digest


def _was_synced(records: Sequence[AnyLine]) -> bool:
    return any(
        (isinstance(record, ToolRequested) and not record.read_only)
        or (isinstance(record, TurnEnded) and record.outcome == 'answered')
        for record in records
    )
