"""Putting a new file in the place of another one that somebody else may be editing."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def exchange(path: Path, other: Path) -> bool:
    """Lets two files take each other's name, both at once; see renameat2(2), since Linux 3.15.

    Returns:
        Whether the system and the file system can do that; where they cannot, nothing was done.

    Raises:
        OSError: It failed; `FileNotFoundError` where one of them is not there.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), 'renameat2', None)
    if renameat2 is None:
        return False
    done = renameat2(
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(other)),
        ctypes.c_uint(_RENAME_EXCHANGE),
    )
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(path))


def put_in_place(new: Path, path: Path, check: Callable[[bytes | None], None]) -> None:
    """Puts `new` in the place of `path`, unless `check` objects to what is there in that very instant.

    What was there is looked at once it can no longer be reached by its name, so that an edit is never lost between
    the look and the rename. Where the system cannot exchange two files it is looked at right before.

    Args:
        new: The new file. It is gone afterwards, or holds what was there: remove it.
        path: The place.
        check: Is given what is there, or None where there is no file; what it raises leaves that in its place.

    Raises:
        OSError: It could not be done; what was there stays.
    """
    while True:
        present = _read(path)
        check(present)
        try:
            if present is None:
                os.link(new, path)
                return
            if not exchange(new, path):
                os.replace(new, path)  # noqa: PTH105 - the system call by its own name
                return
        except FileExistsError:
            continue  # made in that very moment
        except FileNotFoundError:
            if new.exists():
                continue  # removed in that very moment
            raise
        try:
            check(_read(new))
        except BaseException:
            exchange(new, path)
            raise
        return


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
