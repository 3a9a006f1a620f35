"""A desk that a person holds: remembered in its folder, so that a restart does not let it go."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trading_agent import files
from trading_agent.clock import INDIA
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.memory.damage import Damage, DamageReport, set_aside
from trading_agent.trigger import storable

FORMAT_VERSION = 1


class _Version(msgspec.Struct, frozen=True):
    version: int = FORMAT_VERSION


class Hold(msgspec.Struct, frozen=True):
    """Who holds a desk, since when and why.

    Attributes:
        at: When, in UTC.
        by: Who.
        reason: Why, in that person's words; may be empty.
        version: The format of the file.
    """

    at: datetime
    by: str
    reason: str
    version: int = FORMAT_VERSION

    def in_words(self, desk: str) -> str:
        """Returns it as `status` shows it, with the command that mends it."""
        return by_hand('paused', self.at, self.by, self.reason, f'trading-agent resume {desk}')


def by_hand(what: str, at: datetime, by: str, reason: str, undone_by: str) -> str:
    """Returns in words what a person has done, when and why, with the command that undoes it."""
    since = at.astimezone(INDIA)
    why = f': {reason}' if reason else ''
    return f'{what} by {by} at {since:%H:%M} IST on {since:%d %b}{why} (`{undone_by}`)'


class HoldFile:
    """`paused.json` in a desk's folder. All methods block on the disk.

    Args:
        folder: The desk's folder.
        on_damage: Is told, once, of a file that cannot be understood; None logs it.
    """

    def __init__(self, folder: Path, on_damage: Callable[[Damage], None] | None = None) -> None:
        self._path = folder / 'paused.json'
        self._damage = DamageReport(on_damage)

    def read(self) -> Hold | None:
        """Returns the hold, or None. A file that cannot be understood holds: letting go is for a person to say.

        Raises:
            StorageError: It is there and cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        data = files.read(self._path)
        return (
            None
            if data is None
            else self._hold_in(data) or Hold(self._saved_at(), 'somebody', 'paused.json is damaged')
        )

    def _hold_in(self, data: bytes) -> Hold | None:
        """Returns the hold that the file says, or None where it cannot be understood, which is told."""
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version > FORMAT_VERSION:
                what = f'{self._path} has format {version}, and this program knows up to {FORMAT_VERSION}'
                raise DeskUnusable(what, 'install the newer version of trading-agent again; nothing was changed')
            hold = msgspec.json.decode(data, type=Hold)
            in_utc = hold.at.astimezone(UTC) if hold.at.tzinfo else hold.at.replace(tzinfo=UTC)
            in_utc.astimezone(INDIA)
        except (ValueError, OverflowError, RecursionError) as error:
            self._damage.tell(self._path, None, error)
            return None
        return msgspec.structs.replace(hold, at=in_utc)

    def _saved_at(self) -> datetime:
        try:
            return datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except OSError as error:
            raise StorageError('read', self._path, error) from error

    def write(self, hold: Hold) -> None:
        """Writes the hold, durably.

        Raises:
            StorageError: It could not be written; the one before stays.
            DeskUnusable: A newer version of the program wrote the one before.
        """
        data = files.read(self._path)
        if data is not None and self._hold_in(data) is None:
            set_aside(self._path)
        files.make_folder(self._path.parent)
        plain = msgspec.structs.replace(hold, by=storable(hold.by), reason=storable(hold.reason))
        files.replace(self._path, msgspec.json.encode(plain) + b'\n')

    def remove(self) -> None:
        """Lets go, durably. A file that could not be understood is kept under another name.

        Raises:
            StorageError: It could not be removed; it still holds.
            DeskUnusable: A newer version of the program wrote it.
        """
        data = files.read(self._path)
        if data is not None and self._hold_in(data) is not None:
            files.remove(self._path)
        elif data is not None:
            set_aside(self._path)
