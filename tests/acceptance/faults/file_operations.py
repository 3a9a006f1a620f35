"""What a program did to files, call by call; see the man page of each."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """One system call that was made and did something, or a sync that failed.

    Attributes:
        line: The line of the trace that it begins in, from 1.
    """

    line: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Open(Operation):
    """open(2): a descriptor, and maybe a new file, or an old one emptied."""

    path: str
    descriptor: int
    mode: int
    creates: bool
    empties: bool
    appends: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Close(Operation):
    """close(2)."""

    descriptor: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Duplicate(Operation):
    """dup(2)."""

    descriptor: int
    second: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Seek(Operation):
    """lseek(2), with the place that it led to."""

    descriptor: int
    offset: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Write(Operation):
    """write(2) and the like: the bytes that were taken, and where to; None for where the descriptor stands."""

    descriptor: int
    path: str
    data: bytes
    offset: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Resize(Operation):
    """truncate(2); `grows` for fallocate(2), which makes no file smaller. The file is a descriptor or a path."""

    file: int | str
    size: int
    grows: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ChangeMode(Operation):
    """chmod(2), of a descriptor or a path."""

    file: int | str
    mode: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Sync(Operation):
    """fsync(2), of a file or a folder, or fdatasync(2): `data_only`."""

    descriptor: int
    path: str
    data_only: bool
    failed: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Rename(Operation):
    """rename(2)."""

    path: str
    to: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Swap(Operation):
    """renameat2(2) with RENAME_EXCHANGE: two files take each other's name."""

    path: str
    to: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Link(Operation):
    """link(2): a second name."""

    path: str
    to: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Remove(Operation):
    """unlink(2), or rmdir(2)."""

    path: str


@dataclass(frozen=True, eq=False, kw_only=True)
class MakeFolder(Operation):
    """mkdir(2)."""

    path: str
    mode: int


class Moment(NamedTuple):
    """An operation begins, or it has ended. Between the two it may have happened or not."""

    operation: Operation
    ends: bool
