"""Syncs that can be believed, and what is done when one has failed.

After a failed fdatasync(2) the system takes what it could not write for written: a second one says that all is well,
and the data is in memory only. So the bytes are written again. On ext4 that is not enough: the blocks that were to
take them stay marked as empty, and a power cut leaves zeros there, however often the same pages are written (seen
with Linux 6.18). Therefore the file is cut off first, so that the system looks for another place.
"""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

_TRIES, _PAUSE_SECONDS = 3, 0.001

_WRITTEN_AGAIN = 'nothing is lost; look at the kernel log, and make a backup'
_LOGGER = logging.getLogger(__name__)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all of `data`: pwrite(2) may write less than it was given."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left = left[written:]
        offset += written


def sync_or_rewrite(descriptor: int, data: bytes, offset: int, path: Path, kept: int = 0) -> None:
    """Syncs a file; where that fails, writes again from memory what was not synced before, and syncs that.

    Args:
        descriptor: The file.
        data: All of it that is not on the disk for certain, up to its end.
        offset: Where that begins.
        path: The file's name, for the log.
        kept: So many bytes of the data are left in the file where that fails too, unsynced as they were.

    Raises:
        OSError: It could not be written or synced.
    """
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        write_again(descriptor, data, offset, kept)
        _LOGGER.warning('%s could not be synced (%s) and was written again: %s', path, error, _WRITTEN_AGAIN)


def write_again(descriptor: int, data: bytes, offset: int, kept: int = 0) -> None:
    """Writes the end of a file again, whose sync has failed, and syncs it; see `sync_or_rewrite`.

    Raises:
        OSError: It could not be written or synced.
    """
    try:
        os.ftruncate(descriptor, offset)
        write_all(descriptor, data, offset)
        os.fdatasync(descriptor)
    except OSError:
        _take_back(descriptor, data[:kept], offset)
        raise


def _take_back(descriptor: int, kept: bytes, offset: int) -> None:
    with suppress(OSError):
        os.ftruncate(descriptor, offset)
        try:
            write_all(descriptor, kept, offset)
        except OSError:
            os.ftruncate(descriptor, offset)  # whole lines, or none


def on_disk(descriptor: int, size: int, offset: int) -> bytes:
    """Returns bytes of a file as they are on the disk, as far as the system can be made to look there.

    Raises:
        OSError: They could not be synced or read.
    """
    os.fdatasync(descriptor)
    for _ in range(_TRIES):
        with suppress(OSError):  # some file systems have nothing to forget
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not _is_in_memory(descriptor, offset + size - 1):
            break
        time.sleep(_PAUSE_SECONDS)  # somebody reads it in this moment
    return os.pread(descriptor, size, offset)


def _is_in_memory(descriptor: int, offset: int) -> bool:
    try:
        return bool(os.preadv(descriptor, [bytearray(1)], max(0, offset), os.RWF_NOWAIT))
    except OSError:  # it would have to wait for the disk, or cannot say
        return False
