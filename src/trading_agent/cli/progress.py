"""A bar for work that takes a while: on a terminal alone, and only once it has taken longer than a moment."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AFTER_SECONDS = 1.0

Advance = Callable[[int, int, str], None]
"""Is told how much is done, of how much, and what is being done."""


@contextmanager
def bar(title: str, *, unit: str = 'bytes', quiet: bool = False) -> Iterator[Advance]:
    """Shows on stderr how far the work within the block is.

    Args:
        title: What is done.
        unit: What is counted: `bytes`, or any other noun.
        quiet: Whether to show nothing, as where stderr is no terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total, _about: None
        return
    shown = _Bar(title, unit)
    try:
        yield shown.advance
    finally:
        shown.close()


class _Bar:
    """The bar, made when it is needed: Rich takes a while to import."""

    def __init__(self, title: str, unit: str) -> None:
        self._title = title
        self._unit = unit
        self._begun = time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def advance(self, done: int, total: int, about: str) -> None:
        if self._progress is None:
            if time.monotonic() - self._begun < AFTER_SECONDS:
                return
            self._show()
        self._progress.update(self._task, completed=done, total=total, about=about)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        counted = [DownloadColumn(), TransferSpeedColumn()] if self._unit == 'bytes' else [MofNCompleteColumn()]
        columns = [TextColumn('{task.description}'), BarColumn(), *counted, TimeRemainingColumn()]
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            *columns, TextColumn('{task.fields[about]}', style='dim'), console=console, transient=True
        )
        self._task = self._progress.add_task(self._title, about='')
        self._progress.start()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
