"""A folder for a part of the suite to work in."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = 'faults-'


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Yields an empty folder, in memory where the machine has such a place; it is removed in the end."""
    shared = Path('/dev/shm')  # noqa: S108 - only its speed is wanted, the folder in it is unique
    place = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    for left in place.glob(f'{_PREFIX}*-*'):  # by a process that was killed
        if not Path('/proc', left.name.removeprefix(_PREFIX).partition('-')[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f'{_PREFIX}{os.getpid()}-', dir=place) as folder:
        yield Path(folder)
