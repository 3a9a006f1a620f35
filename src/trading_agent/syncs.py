"""Syncs that can be believed, and what is done when one has failed.

After a failed fdatasync(2) the system takes what it could not write for written: a second one says that all is well,
and the data is in memory only. So the bytes are written again. On ext4 that is not enough: the blocks that were to
take them stay marked as empty, and a power cut leaves zeros there, however often the same pages are written (seen
with Linux 6.18). Therefore the system is first told to forget the pages, so that it looks for their place anew.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

_WRITTEN_AGAIN = 'nothing is lost; look at the kernel log, and make a backup'
_LOGGER = logging.getLogger(__name__)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all of `data`: pwrite(2) may write less than it was given."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left = left[written:]
        offset += written


def sync_or_rewrite(descriptor: int, data: bytes, offset: int, path: Path) -> None:
    """Syncs a file; where that fails, writes again from memory what was not synced before, and syncs that.

    Args:
        descriptor: The file.
        data: All of it that is not on the disk for certain, up to its end.
        offset: Where that begins.
        path: The file's name, for the log.

    Raises:
        OSError: It could not be written or synced.
    """
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        write_again(descriptor, data, offset)
        _LOGGER.warning('%s could not be synced (%s) and was written again: %s', path, error, _WRITTEN_AGAIN)


def write_again(descriptor: int, data: bytes, offset: int) -> None:
    """Writes bytes whose sync has failed, and syncs them.

    Raises:
        OSError: They could not be written or synced.
    """
    forget_pages(descriptor)
    write_all(descriptor, data, offset)
    os.fdatasync(descriptor)


def forget_pages(descriptor: int) -> None:
    """Lets the system forget what it holds of a file in memory and takes for written; see posix_fadvise(2)."""
    with suppress(OSError):  # some file systems have nothing to forget
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
