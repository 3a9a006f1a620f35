"""Whether a journal is as it was written: each record carries its number and the digest of the line before it."""

from pathlib import Path
from typing import Literal

import msgspec

from trading_agent import json_lines
from trading_agent.conversation.records import NO_RECORD, SessionHeader, decode_record, digest_of


class Break(msgspec.Struct, frozen=True):
    """The first place where a journal is not as it was written.

    Attributes:
        what: `altered`, `missing` or `reordered`; `altered` also where the record cannot be read any more.
        number: The record's number; 0 for the header.
        line: The line's number in the file, from 1: where it stands, or for a missing one, where it should.
    """

    what: Literal['altered', 'missing', 'reordered']
    number: int
    line: int


class Verification(msgspec.Struct, frozen=True):
    """What was found in a journal.

    Attributes:
        records: How many records can be read, the header not counted.
        unnumbered: How many of them are of a version without numbers and digests: nothing can be said of these.
        unreadable: The lines that are no record, such as what a crash left of one.
        broken: The first break of the chain, or None.
        digest: The digest of the last record; empty for an empty file.
        header: The file's first line, or None where it is no header.
    """

    records: int
    unnumbered: int
    unreadable: list[int]
    broken: Break | None
    digest: str
    header: SessionHeader | None


class _Line(msgspec.Struct, frozen=True):
    line: int
    number: int
    previous: str
    digest: str


def verify(path: Path, last_digest: str | None = None) -> Verification:
    """Reads a journal and names the first record that was altered, taken out or moved.

    Without `last_digest` a change of the last record, or records cut off at the end, cannot be seen: it stands in
    the header of the desk's next session and in `session_ended`. What a crash left of a record that was being
    written is no break: it was never part of the chain.

    Raises:
        StorageError: The file cannot be read.
    """
    found: list[_Line] = []
    unreadable: list[int] = []
    header: SessionHeader | None = None
    for at, line in json_lines.read(path):
        try:
            record = decode_record(line)
        except NO_RECORD:
            unreadable.append(at)
            continue
        if isinstance(record, SessionHeader):
            header = header or record
            found.append(_Line(at, 0, '', digest_of(line)))
        else:
            found.append(_Line(at, record.number, record.previous, digest_of(line)))
    return Verification(
        records=len(found) - (header is not None),
        unnumbered=sum(not line.number and not (at == 0 and header) for at, line in enumerate(found)),
        unreadable=unreadable,
        broken=_first_break(found, last_digest),
        digest=found[-1].digest if found else '',
        header=header,
    )


def _first_break(found: list[_Line], last_digest: str | None) -> Break | None:
    before: _Line | None = None
    for at, line in enumerate(found):
        expected = before.number + 1 if before is not None else 1
        if not line.number:
            if before is not None and before.number:
                return Break('altered', expected, line.line)
        elif line.number != expected:
            elsewhere = any(other.number == expected for other in found[at + 1 :])
            if line.number < expected or elsewhere:
                return Break('reordered', line.number, line.line)
            return Break('missing', expected, line.line)
        elif line.previous != (before.digest if before is not None else ''):
            return _altered(found, at)
        before = line
    if last_digest is not None and before is not None and before.digest != last_digest:
        return Break('altered', before.number, before.line)
    return None


def _altered(found: list[_Line], at: int) -> Break:
    """Says which of two records was altered: the one whose digest does not fit what follows."""
    here = found[at]
    after = found[at + 1] if at + 1 < len(found) else None
    if at and (after is None or after.previous == here.digest):
        here = found[at - 1]
    return Break('altered', here.number, here.line)
