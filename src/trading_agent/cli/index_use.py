"""The index as the command line uses it: made, caught up or mended first, and said so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from trading_agent.cli.options import Options
from trading_agent.cli.progress import Advance, bar
from trading_agent.cli.records import desk_names
from trading_agent.cli.render import size_of
from trading_agent.cli.workspace import workspace_with_records
from trading_agent.errors import StorageError, TradingAgentError
from trading_agent.index.sqlite import IndexDamaged, Progress, SqliteIndex

VECTORS = 'vectors'
"""The folder of the vectors within the workspace."""


def workspace_with_desks(options: Options) -> Path:
    """Returns the workspace whose records are to be searched.

    Raises:
        TradingAgentError: It has no desks: no index is made there.
    """
    workspace = workspace_with_records(options.config, options.workspace)
    if not desk_names(workspace):
        raise TradingAgentError(f'{workspace} has no desks', 'name the workspace with --workspace')
    return workspace


@contextmanager
def open_index(workspace: Path) -> Iterator[SqliteIndex]:
    """Opens the index of a workspace; what is damaged is told on stderr as it is mended."""
    with SqliteIndex(workspace, tell_damaged_index) as index:
        yield index


@contextmanager
def caught_up(workspace: Path, desk: str | None = None) -> Iterator[SqliteIndex]:
    """Opens the index, and first makes it, mends it, or reads into it what is new, which is told on stderr.

    Where that is not possible, what there is of it is searched: that is told as well.

    Args:
        workspace: The workspace.
        desk: Only what is new of this desk; None for all.
    """
    with open_index(workspace) as index:
        _tell_state(index, desk)
        try:
            with bar('reading into the index') as advance:
                index.catch_up(desk=desk, on_progress=on_bar(advance))
        except StorageError as error:
            click.echo(f'warning: the index is not complete: {error.in_words}', err=True)
        yield index


def on_bar(advance: Advance) -> Callable[[Progress], None]:
    """Returns what moves a bar as the index tells how far it is."""
    return lambda progress: advance(progress.done, progress.total, f'{progress.desk} {progress.session_id}')


def tell_damaged_index(aside: Path, problem: str) -> None:
    """Warns on stderr of an index that was damaged."""
    click.echo(f'warning: the index was damaged and is made anew: {problem} (the old one is {aside})', err=True)


def _tell_state(index: SqliteIndex, desk: str | None) -> None:
    if not index.exists:
        click.echo('there is no index yet: it is being made', err=True)
        return
    try:
        behind = sum(status.behind for status in index.status() if desk in (None, status.desk))
    except (IndexDamaged, StorageError):
        return  # told when it is mended, or cannot be
    if behind:
        click.echo(f'the index is {size_of(behind)} behind: it is being caught up', err=True)
