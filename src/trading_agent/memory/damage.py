"""What is told of a file that can be read only in part."""

import logging
from dataclasses import dataclass
from pathlib import Path

_LOGGER = logging.getLogger(__name__)


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
