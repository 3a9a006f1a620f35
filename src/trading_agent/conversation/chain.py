"""Whether a journal is as it was written: each record carries its number and the digest of the line before it."""

from pathlib import Path
from typing import Literal

import msgspec

from trading_agent import json_lines
from trading_agent.conversation.records import NO_RECORD, AnyLine, SessionHeader, decode_record, digest_of


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


class ChainLine(msgspec.Struct, frozen=True):
    """What a line of a journal says of its place in the chain.

    Attributes:
        line: The line's number in the file, from 1.
        number: The record's number; 0 for the header, and for a record of a version without numbers.
        previous: The digest of the line before, as the record has it.
        digest: The digest of this line.
    """

    line: int
    number: int
    previous: str
    digest: str


class Chain:
    """Follows a journal line by line; of what was read it keeps two lines, however long the journal is.

    Attributes:
        last: The line that was read last, or None.
    """

    def __init__(self) -> None:
        self.last: ChainLine | None = None
        self._broken: Break | None = None
        self._unfit: tuple[ChainLine | None, ChainLine] | None = None
        self._gap: tuple[int, ChainLine] | None = None

    def take(self, here: ChainLine) -> None:
        """Takes the next line that can be read."""
        before, self.last = self.last, here
        if self._broken is not None:
            return
        if self._unfit is not None:
            self._broken = _altered(*self._unfit, here)
        elif self._gap is not None:
            expected, late = self._gap
            if here.number == expected:
                self._broken = Break('reordered', late.number, late.line)
        else:
            self._compare(before, here)

    def _compare(self, before: ChainLine | None, here: ChainLine) -> None:
        expected = before.number + 1 if before is not None else 1
        if not here.number:
            if before is not None and before.number:
                self._broken = Break('altered', expected, here.line)
        elif here.number < expected:
            self._broken = Break('reordered', here.number, here.line)
        elif here.number > expected:
            self._gap = expected, here  # missing, unless it follows later
        elif here.previous != (before.digest if before is not None else ''):
            self._unfit = before, here  # which of the two was altered, the next line says

    def end(self, last_digest: str | None = None) -> Break | None:
        """Returns the first break, all lines taken.

        Args:
            last_digest: The digest of the last record, where it is known from elsewhere.
        """
        if self._broken is not None:
            return self._broken
        if self._unfit is not None:
            return _altered(*self._unfit, None)
        if self._gap is not None:
            expected, late = self._gap
            return Break('missing', expected, late.line)
        if last_digest is not None and self.last is not None and self.last.digest != last_digest:
            return Break('altered', self.last.number, self.last.line)
        return None


def verify(path: Path, last_digest: str | None = None) -> Verification:
    """Reads a journal and names the first record that was altered, taken out or moved.

    Without `last_digest` a change of the last record, or records cut off at the end, cannot be seen: it stands in
    the header of the desk's next session and in `session_ended`. What a crash left of a record that was being
    written is no break: it was never part of the chain.

    Raises:
        StorageError: The file cannot be read.
    """
    chain = Chain()
    lines, unnumbered, first_number = 0, 0, 0
    unreadable: list[int] = []
    header: SessionHeader | None = None
    for at, line in json_lines.read(path):
        try:
            record = decode_record(line)
        except NO_RECORD:
            unreadable.append(at)
            continue
        here = chain_line(at, record, line)
        header = header or (record if isinstance(record, SessionHeader) else None)
        first_number = here.number if not lines else first_number
        lines += 1
        unnumbered += not here.number
        chain.take(here)
    return Verification(
        records=lines - (header is not None),
        unnumbered=unnumbered - (header is not None and not first_number),
        unreadable=unreadable,
        broken=chain.end(last_digest),
        digest=chain.last.digest if chain.last is not None else '',
        header=header,
    )


def chain_line(at: int, record: AnyLine, line: bytes) -> ChainLine:
    """Returns what a line says of its place.

    Args:
        at: The line's number in the file, from 1.
        record: What was read in it.
        line: The line itself, without its newline.
    """
    if isinstance(record, SessionHeader):
        return ChainLine(at, 0, '', digest_of(line))
    return ChainLine(at, record.number, record.previous, digest_of(line))


def _altered(before: ChainLine | None, here: ChainLine, after: ChainLine | None) -> Break:
    """Says which of two records was altered: the one whose digest does not fit what follows."""
    if before is not None and (after is None or after.previous == here.digest):
        here = before
    return Break('altered', here.number, here.line)
