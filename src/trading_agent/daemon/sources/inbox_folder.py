"""One desk's inbox folder: what lies in it, and where its files go. Everything here blocks on the disk.

Producers write into the folder at any moment. Whatever was found is therefore looked at again when it is opened and
after it was moved: a file that was put in place of another one is never filed away unseen.
"""

import errno
import itertools
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePath

from trading_agent import files
from trading_agent.daemon.sources.inbox_file import Found, Rejection, is_passed_over
from trading_agent.errors import StorageError
from trading_agent.trigger import storable

REASON_SUFFIX = '.reason'

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_NAME_BYTES = 200
"""A name that is filed leaves room, of the 255 bytes that a name can have, for a number and for `.reason`."""


@dataclass(frozen=True)
class Look:
    """What lies in an inbox.

    Attributes:
        identity: The folder's device and inode: another folder of the same name has others.
        found: The things that the inbox has to do with.
        error: Why one of them could not be looked at, or None.
    """

    identity: tuple[int, int]
    found: list[Found]
    error: StorageError | None


class InboxFolder:
    """The folder that a desk's producers put files into.

    Args:
        path: The folder; made when it is first looked at.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def look(self) -> Look:
        """Returns what is there. A missing folder is made.

        Raises:
            StorageError: The folder cannot be made or read.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(self.path, flags)
            except FileNotFoundError:
                files.make_folder(self.path)
                descriptor = os.open(self.path, flags)
            try:
                return self._look(descriptor)
            finally:
                os.close(descriptor)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError('list', self.path, error) from error

    def _look(self, descriptor: int) -> Look:
        folder = os.fstat(descriptor)
        things: list[Found] = []
        failed: StorageError | None = None
        with os.scandir(descriptor) as entries:
            for entry in entries:
                try:
                    found = Found.of(entry.name, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    failed = StorageError('look at', self.path / entry.name, error)
                    continue
                if not is_passed_over(found):
                    things.append(found)
        return Look((folder.st_dev, folder.st_ino), things, failed)

    def read(self, found: Found, most: int) -> bytes | None:
        """Returns what a file holds, or None where it is not the same file any more, or still changing.

        A pipe, a device or a link that took its place is noticed, and waited for or followed in no case.

        Args:
            found: The file.
            most: How many bytes are read at most.

        Raises:
            StorageError: It is there and cannot be read.
        """
        path = self.path / found.name
        try:
            descriptor = os.open(path, _FLAGS)
        except OSError as error:
            # ELOOP: a link; ENXIO: a socket, or a device that is not there (open(2)).
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                return None
            raise StorageError('read', path, error) from error
        try:
            if Found.of(found.name, os.fstat(descriptor)) != found:
                return None
            content = bytearray()
            while len(content) < most and (data := os.read(descriptor, min(1 << 20, most - len(content)))):
                content += data
            unchanged = Found.of(found.name, os.fstat(descriptor)) == found and len(content) == found.size
            return bytes(content) if unchanged else None
        except OSError as error:
            raise StorageError('read', path, error) from error
        finally:
            os.close(descriptor)

    def to_done(self, found: Found, day: date) -> None:
        """Moves a file that was taken to `done/<day>/`, durably; never over another one.

        Nothing is done when it is not there any more, or another file by now.

        Raises:
            StorageError: It could not be moved. It is where it was, or moved and maybe not durably.
        """
        folder = self.path / 'done' / day.isoformat()
        files.make_folder(folder)
        self._move(found, folder / _free_name(folder, found.name))

    def to_rejected(self, found: Found, rejection: Rejection) -> None:
        """Moves a file to `rejected/`, durably, with a `.reason` beside it that says why; as `to_done`.

        Raises:
            StorageError: It could not be moved.
        """
        folder = self.path / 'rejected'
        files.make_folder(folder)
        destination = folder / _free_name(folder, found.name)
        reason = destination.with_name(destination.name + REASON_SUFFIX)
        told = f'Not taken ({rejection.reason}): {rejection.error}\nWhat to do: {rejection.hint}\n'
        moved = False
        try:
            files.replace(reason, storable(told).encode())
            moved = self._move(found, destination)
        finally:
            if not moved and not os.path.lexists(destination):
                with suppress(OSError):
                    reason.unlink(missing_ok=True)

    def _move(self, found: Found, destination: Path) -> bool:
        path = self.path / found.name
        if _found_at(path, found.name) != found:
            return False
        files.move(path, destination)
        if _found_at(destination, found.name) in (found, None):  # None: somebody has taken it from there already
            _make_private(destination)
            return True
        # Between the look and the rename another file took its place: that one has not been taken yet.
        self._give_back(destination, found.name)
        return False

    def _give_back(self, path: Path, name: str) -> None:
        while not files.link(path, self.path / _free_name(self.path, name)):
            pass
        files.remove(path)


def _make_private(path: Path) -> None:
    """Lets nobody else read a file from now on; one that has a name elsewhere too is its producer's to look after."""
    with suppress(OSError):
        descriptor = os.open(path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def _found_at(path: Path, name: str) -> Found | None:
    try:
        return Found.of(name, path.lstat())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError('look at', path, error) from error


def _free_name(folder: Path, name: str) -> str:
    """Returns `name`, or where that or its `.reason` is taken, the first free `stem-2.suffix`, `-3` and so on.

    A name that is too long to be added to is shortened.
    """
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        kept = os.fsencode(PurePath(name).suffix)[:20].decode(errors='ignore')
        name = os.fsencode(name)[: _MAX_NAME_BYTES - len(kept.encode())].decode(errors='ignore') + kept
    suffix = PurePath(name).suffix
    stem = name.removesuffix(suffix)
    names = itertools.chain([name], (f'{stem}-{number}{suffix}' for number in itertools.count(2)))
    return next(
        free for free in names if not any(os.path.lexists(folder / (free + ending)) for ending in ('', REASON_SUFFIX))
    )
