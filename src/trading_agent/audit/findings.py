"""What an audit finds, file by file: how many records there are, what is wrong, and what is only told."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

Kind = Literal[
    'backfill',
    'disabled_backends',
    'exchanges',
    'folder',
    'hold',
    'index',
    'journal',
    'ledger',
    'lock',
    'memory',
    'notes',
    'proposal',
    'rollover',
    'session_ids',
    'set_aside',
    'skill',
    'state',
    'summary',
    'temporary',
    'triggers',
    'untold',
]
"""What a file is."""

Mend = Literal['seal', 'ids', 'state', 'sweep', 'index', 'mode']
"""How a problem can be mended without a doubt."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found in a file.

    Attributes:
        what: What it is, in words.
        line: The line's number, from 1; None where it is about the whole file.
        offset: Where that line begins, in bytes; None likewise.
        mend: How it can be mended; None where a person has to decide.
    """

    what: str
    line: int | None = None
    offset: int | None = None
    mend: Mend | None = None

    @property
    def in_words(self) -> str:
        """What it is, and where in the file."""
        return self.what if self.line is None else f'line {self.line} (offset {self.offset}): {self.what}'


@dataclass
class FileReport:
    """What was found in one file.

    Attributes:
        path: Its path within the workspace.
        kind: What it is.
        records: How many records of it can be read; 1 for a file that is one whole.
        problems: What is damaged, missing or contradicts another file.
        notes: What is told and is no fault.
        newer: Whether a newer version of the program wrote it, so that it is neither judged nor touched.
    """

    path: str
    kind: Kind
    records: int = 0
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    newer: bool = False
    _remnants: list[tuple[Finding, str]] = field(default_factory=list)

    def problem(
        self, what: str, line: int | None = None, offset: int | None = None, *, mend: Mend | None = None
    ) -> None:
        """Adds a problem."""
        self.problems.append(Finding(what, line, offset, mend))

    def note(self, what: str, line: int | None = None, offset: int | None = None, *, mend: Mend | None = None) -> None:
        """Adds what is only told."""
        self.notes.append(Finding(what, line, offset, mend))

    def remnant(self, looks_like: str, why: str, line: int, offset: int) -> None:
        """Adds a line that looks like what a crash leaves of one; `settle` says what it counts as."""
        self._remnants.append((Finding(f'cannot be read: {why}', line, offset), looks_like))

    def settle(self, *, contradicted: bool = False) -> None:
        """Decides on the remnants of lines.

        Args:
            contradicted: Whether something shows that a line of this file was whole once.
        """
        remnants, self._remnants = self._remnants, []
        for found, looks_like in remnants:
            if contradicted:
                self.problems.append(found)
            else:
                self.note(looks_like, found.line, found.offset)

    def is_newer(self, version: object, known: int | str) -> None:
        """Tells that a newer version of the program wrote the file."""
        self.newer = True
        self.problem(
            f'has format {version}, and this program knows up to {known}: '
            'install the newer version of trading-agent again'
        )


class Reports:
    """What was found in several files, in the order in which they were looked at."""

    def __init__(self) -> None:
        self._files: dict[str, FileReport] = {}

    def of(self, path: str, kind: Kind) -> FileReport:
        """Returns what was found in a file so far; of a new one nothing.

        Args:
            path: Its path within the workspace.
            kind: What it is.
        """
        return self._files.setdefault(path, FileReport(path, kind))

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def __iter__(self) -> Iterator[FileReport]:
        return iter(self._files.values())


@dataclass
class DeskReport:
    """What was found of one desk.

    Attributes:
        name: The desk.
        files: Its files.
        sessions: How many sessions have a log.
        exchanges: How many exchanges there are.
        triggers: How many triggers were accepted.
        open_triggers: How many of them are open.
        journal_records: How many records there are in its journals.
    """

    name: str
    files: Reports = field(default_factory=Reports)
    sessions: int = 0
    exchanges: int = 0
    triggers: int = 0
    open_triggers: int = 0
    journal_records: int = 0


@dataclass
class WorkspaceReport:
    """What was found of a workspace.

    Attributes:
        desks: Its desks, by name.
        files: The files beside them.
    """

    desks: list[DeskReport] = field(default_factory=list)
    files: Reports = field(default_factory=Reports)

    def all_files(self) -> Iterator[FileReport]:
        """Yields every file: those of the desks first."""
        for desk in self.desks:
            yield from desk.files
        yield from self.files

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not any(file.problems for file in self.all_files())
