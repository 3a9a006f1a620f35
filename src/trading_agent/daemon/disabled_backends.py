"""Backends that a person has taken out of use: remembered in the workspace, so that a restart brings none back."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from trading_agent import files
from trading_agent.clock import INDIA
from trading_agent.daemon.hold import by_hand
from trading_agent.errors import DeskUnusable, TradingAgentError
from trading_agent.memory.damage import set_aside
from trading_agent.trigger import storable

FORMAT_VERSION = 1
FILE_NAME = 'disabled-backends.json'


class Disabled(msgspec.Struct, frozen=True):
    """Who took a backend out of use, when and why.

    Attributes:
        at: When, in UTC.
        by: Who.
        reason: Why, in that person's words; may be empty.
    """

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    by: str
    reason: str = ''

    def in_words(self, backend: str) -> str:
        """Returns it as `status` shows it, with the command that undoes it."""
        return by_hand('disabled', self.at, self.by, self.reason, f'trading-agent backends enable {backend}')


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Content(msgspec.Struct, frozen=True):
    version: int
    backends: dict[str, Disabled]


class DisabledFileDamaged(TradingAgentError):
    """Raised when the file could not be understood, and was moved aside."""


class DisabledFile:
    """`disabled-backends.json` in the workspace. All methods block on the disk.

    Args:
        workspace: The workspace, which exists.
    """

    def __init__(self, workspace: Path) -> None:
        self.path = workspace / FILE_NAME

    def read(self) -> dict[str, Disabled]:
        """Returns who has disabled which backend; a missing file has none.

        Raises:
            StorageError: It is there and cannot be read.
            DeskUnusable: A newer version of the program wrote it.
            DisabledFileDamaged: It could not be understood.
        """
        data = files.read(self.path)
        if data is None:
            return {}
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version > FORMAT_VERSION:
                what = f'{self.path} has format {version}, and this program knows up to {FORMAT_VERSION}'
                raise DeskUnusable(what, 'install the newer version of trading-agent again; nothing was changed')
            backends = msgspec.json.decode(data, type=_Content).backends
            for disabled in backends.values():
                disabled.at.astimezone(INDIA)
        except (ValueError, OverflowError, RecursionError) as error:
            aside = set_aside(self.path)
            hint = f'it was moved to {aside.name}: look which backends it names, and disable them again'
            raise DisabledFileDamaged(f'{self.path.name} cannot be understood: {error}', hint) from error
        return backends

    def write(self, disabled: Mapping[str, Disabled]) -> None:
        """Replaces the file, durably.

        Raises:
            StorageError: It could not be written; the one before stays.
            DeskUnusable: A newer version of the program wrote the one before.
            DisabledFileDamaged: Somebody has damaged the one before.
        """
        self.read()
        plain = {
            storable(name): Disabled(one.at, storable(one.by), storable(one.reason)) for name, one in disabled.items()
        }
        files.replace(self.path, msgspec.json.encode(_Content(FORMAT_VERSION, plain)) + b'\n')
