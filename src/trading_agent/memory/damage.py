"""What is told of a file that can be read only in part, and how one that cannot be read is kept."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trading_agent import files

_LOGGER = logging.getLogger(__name__)
_LONGEST_ERROR = 500


@dataclass(frozen=True)
class Damage:
    """A part of a file that could not be read.

    Attributes:
        path: The file.
        line: The line's number from 1, or None when it is about the whole file.
        error: What is wrong with it.
    """

    path: Path
    line: int | None
    error: str


def log_damage(damage: Damage) -> None:
    """Tells of a damaged part by the standard library's logging."""
    _LOGGER.warning('%s, line %s cannot be read: %s', damage.path, damage.line, damage.error)


class DamageReport:
    """Tells of each damaged part once, however often it is read.

    Args:
        tell: Is told, from the thread that read it; None logs it.
    """

    def __init__(self, tell: Callable[[Damage], None] | None = None) -> None:
        self._tell = tell or log_damage
        self._told: set[tuple[Path, int | None]] = set()

    def tell(self, path: Path, line: int | None, error: Exception | str) -> None:
        """Tells of a part, unless that was done before.

        Args:
            path: The file.
            line: The line's number from 1, or None when it is about the whole file.
            error: What is wrong with it.
        """
        if (path, line) not in self._told:
            self._told.add((path, line))
            what = error if isinstance(error, str) else f'{type(error).__name__}: {error}'
            self._tell(Damage(path, line, what[:_LONGEST_ERROR]))

    def lines_in(self, path: Path) -> int:
        """Returns how many damaged lines of a file were told."""
        return sum(told == path and line is not None for told, line in self._told)

    def text_of(self, path: Path, data: bytes) -> str:
        """Returns the text that a file holds. Bytes that are not UTF-8 show as U+FFFD, and the first is told."""
        try:
            return data.decode('utf-8-sig')
        except UnicodeDecodeError as error:
            self.tell(path, data.count(b'\n', 0, error.start) + 1, error)
            return data.decode('utf-8-sig', errors='replace')

    def set_aside(self, path: Path, error: Exception) -> None:
        """Moves a file that cannot be understood out of the way, durably, and tells of it where it is now.

        Raises:
            StorageError: It could not be moved.
        """
        self.tell(set_aside(path), None, error)


def set_aside(path: Path, now: datetime | None = None) -> Path:
    """Moves a damaged file out of the way, durably, and returns where it is now.

    Raises:
        StorageError: It could not be moved.
    """
    aside = _aside(path, now)
    files.move(path, aside)
    return aside


def keep_aside(path: Path) -> Path:
    """Gives a damaged file that is to be replaced a second name, durably, and returns that.

    Raises:
        StorageError: It could not be kept.
    """
    while not files.link(path, aside := _aside(path)):
        pass
    return aside


def _aside(path: Path, now: datetime | None = None) -> Path:
    """Returns a name with the time that no file has."""
    aside = path.with_name(f'{path.name}.damaged-{(now or datetime.now(UTC)).astimezone(UTC):%Y%m%dT%H%M%S%fZ}')
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = aside.with_name(f'{aside.name.partition("Z")[0]}Z-{number}')
    return aside
