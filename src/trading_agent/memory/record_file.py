"""A file of records, one JSON line each behind a header that says its format; only ever appended to."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from trading_agent import files, json_lines
from trading_agent.errors import DeskUnusable
from trading_agent.memory.damage import DamageReport

FORMAT_VERSION = 1
T = TypeVar('T', bound=msgspec.Struct)


class _Header(msgspec.Struct, frozen=True, tag='header', tag_field='type'):
    version: int


_HEADER = msgspec.json.Decoder(_Header)
_UNREADABLE = (ValueError, RecursionError)


def _always(_: object) -> bool:
    return True


class RecordFile(Generic[T]):
    """One such file. All methods block on the disk; threads and processes that append take turns.

    Args:
        path: The file; it and its folder are made by the first record.
        kind: What a record is: a struct, or a union of structs, each tagged by `type`.
        damage: Is told of lines that cannot be read; None logs them.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, kind: type[T], damage: DamageReport | None = None) -> None:
        self.path = path
        self._damage = damage or DamageReport()
        self._decoder = msgspec.json.Decoder(kind)

    def read(self) -> list[T]:
        """Returns the records, oldest first. A damaged or torn line is skipped and told; a missing file has none.

        Raises:
            StorageError: The file is there and cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        found = []
        for number, line in json_lines.read(self.path):
            try:
                found.append(self._decoder.decode(line))
            except _UNREADABLE as error:
                if not self._is_header(line):
                    self._damage.tell(self.path, number, error)
        return found

    def _is_header(self, line: bytes) -> bool:
        try:
            version = _HEADER.decode(line).version
        except _UNREADABLE:
            return False
        if version > FORMAT_VERSION:
            raise DeskUnusable(
                f'{self.path} has format {version}, and this program knows up to {FORMAT_VERSION}',
                'install the newer version of trading-agent again; nothing was changed',
            )
        return True

    def append(self, record: T, wanted: Callable[[list[T]], bool] = _always) -> bool:
        """Adds a record, durably.

        Args:
            record: The record.
            wanted: Is given the records that are there, while nobody else can append, and says whether this one is
                to be added. What it raises leaves the file as it is.

        Returns:
            Whether it was added.

        Raises:
            StorageError: It could not be written; the file is as it was.
            DeskUnusable: A newer version of the program wrote the file.
        """
        added = False

        def lines(end: int) -> bytes:
            nonlocal added
            added = wanted(self.read())
            if not added:
                return b''
            return (b'' if end else json_lines.encode(_Header(FORMAT_VERSION))) + json_lines.encode(record)

        files.make_folder(self.path.parent)
        files.append(self.path, lines)
        return added
