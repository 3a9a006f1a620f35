"""`index`: the copy that search reads: how it is, making it anew, and comparing it with the files."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from trading_agent import files
from trading_agent.cli.index_use import VECTORS, on_bar, open_index, workspace_with_desks
from trading_agent.cli.main import LazyGroup
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.progress import bar
from trading_agent.cli.records import known_desk
from trading_agent.cli.render import plural, print_json, print_table, printable, size_of
from trading_agent.errors import TradingAgentError
from trading_agent.index.sqlite import DeskStatus, Difference, IndexDamaged, SqliteIndex
from trading_agent.memory.session_state import is_session_id

_HERE = 'trading_agent.cli.index'
_DIFFERENCES_SHOWN = 40

COMMANDS = {
    'status': (f'{_HERE}:index_status_command', 'Show what the index holds, and how far behind it is.'),
    'rebuild': (f'{_HERE}:index_rebuild_command', 'Make the index anew from the files, or a part of it.'),
    'check': (f'{_HERE}:index_check_command', 'Compare the index with the files.'),
}
"""Each command of the group, as in `trading_agent.cli.main`."""


@click.command('index', cls=LazyGroup, lazy=COMMANDS)
@global_options
def index_command() -> None:
    """Look after the index that `search` reads.

    It is a copy of what the JSONL files say, and can be deleted at any time: the daemon, or the next search, makes it
    anew.
    """


# -- status --------------------------------------------------------------------------------------------------------


@click.command('status')
@global_options
@pass_options
def index_status_command(options: Options) -> None:
    """Show what the index holds, and how far behind it is. Nothing is changed."""
    workspace = workspace_with_desks(options)
    desks: list[DeskStatus] = []
    problem = ''
    with open_index(workspace) as index:
        try:
            desks = index.status()
        except IndexDamaged as error:
            problem = str(error)
        vectors = _vectors(workspace / VECTORS, index if not problem else None)
    database = {
        'path': str(workspace / index.path.name),
        'exists': index.exists,
        'damaged': problem or None,
        'bytes': sum(_sizes(index.path.with_name(index.path.name + end) for end in ('', '-wal', '-shm'))),
    }
    if options.json:
        print_json({'index': database, 'desks': msgspec.to_builtins(desks), 'vectors': vectors})
        return
    if desks:
        _print_desks(desks)
    click.echo(f'index    {database["path"]}, ' + _state_of(database))
    click.echo(f'vectors  {vectors["path"]}, ' + _state_of_vectors(vectors))


def _print_desks(desks: list[DeskStatus]) -> None:
    print_table(
        ('DESK', 'SESSIONS', 'MESSAGES', 'EXCHANGES', 'BEHIND', ''),
        [
            [
                status.desk,
                f'{status.sessions:,}',
                f'{status.messages:,}',
                f'{status.exchanges:,}',
                size_of(status.behind) if status.behind else '-',
                f'{plural(status.damaged_lines, "damaged line")}' if status.damaged_lines else '',
            ]
            for status in desks
        ],
    )


def _state_of(database: dict[str, Any]) -> str:
    if database['damaged'] is not None:
        return f'damaged: {printable(database["damaged"])}; the daemon or the next search makes it anew'
    if not database['exists']:
        return 'none yet: the daemon or the next search makes it'
    return size_of(database['bytes'])


def _state_of_vectors(vectors: dict[str, Any]) -> str:
    if not vectors['exists']:
        return 'none: `search --semantic` makes them'
    told = [size_of(vectors['bytes'])]
    told += [f'model {printable(vectors["model"])}'] if vectors['model'] else []
    told += [f'{plural(vectors["behind"], "message")} behind'] if vectors['behind'] else []
    return ', '.join(told)


def _vectors(folder: Path, index: SqliteIndex | None) -> dict[str, Any]:
    """Returns what is known of the vectors without loading what they need: their folder says how far they go."""
    state = _read_state(folder)
    marks = {
        (desk, session_id): number
        for desk, sessions in state.get('marks', {}).items()
        for session_id, number in sessions.items()
    }
    behind = None
    if index is not None and index.exists and folder.exists():
        behind = sum(map(len, index.passages(marks)))
    return {
        'path': str(folder),
        'exists': folder.exists(),
        'bytes': sum(_sizes(folder.rglob('*'))),
        'model': state.get('model'),
        'vectors': state.get('vectors'),
        'behind': behind,
    }


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = msgspec.json.decode(files.read(folder / 'state.json') or b'{}', type=dict[str, Any])
        msgspec.convert(state.get('marks', {}), dict[str, dict[str, int]])
    except ValueError:
        return {}
    return state


def _sizes(paths: Any) -> Iterator[int]:  # noqa: ANN401 - any paths
    for path in paths:
        try:
            yield path.stat().st_size if path.is_file() else 0
        except OSError:
            continue


# -- rebuild -------------------------------------------------------------------------------------------------------


@click.command('rebuild')
@click.argument('desk', required=False)
@click.argument('session', required=False)
@global_options
@pass_options
def index_rebuild_command(options: Options, *, desk: str | None, session: str | None) -> None:
    """Make the index anew from the files, or a part of it: of one DESK, or of one of its sessions.

    Whoever searches meanwhile sees the old one.
    """
    workspace = workspace_with_desks(options)
    if desk is not None:
        known_desk(workspace, desk)
    if session is not None and not is_session_id(session):
        raise TradingAgentError(f'{session!r} is no session', 'write it as 2026-10-19-1')
    read = 0
    began = time.monotonic()
    with open_index(workspace) as index, bar('making the index anew', quiet=options.json) as advance:
        move = on_bar(advance)

        def on_progress(progress: Any) -> None:  # noqa: ANN401 - the index's
            nonlocal read
            read = progress.done
            move(progress)

        index.rebuild(desk, session, on_progress)
        desks = [status for status in index.status() if desk in (None, status.desk)]
    seconds = time.monotonic() - began
    told = _rebuilt(desk, session, desks, read, seconds)
    if options.json:
        print_json(told)
        return
    what = f'session {session} of {desk}' if session else f'the index of {desk}' if desk else 'the index'
    rows = f'{told["rows"]:,} rows, {told["rows"] / seconds:,.0f} rows/s, ' if told['rows'] is not None else ''
    click.echo(f'made {what} anew: {rows}{size_of(read)} in {seconds:.1f} s')


def _rebuilt(
    desk: str | None, session: str | None, desks: list[DeskStatus], read: int, seconds: float
) -> dict[str, Any]:
    rows = None if session is not None else sum(status.messages + status.exchanges for status in desks)
    return {'desk': desk, 'session_id': session, 'rows': rows, 'bytes': read, 'seconds': round(seconds, 3)}


# -- check ---------------------------------------------------------------------------------------------------------


@click.command('check')
@click.argument('desk', required=False)
@global_options
@pass_options
def index_check_command(options: Options, *, desk: str | None) -> None:
    """Compare the index with the files, or only that of one DESK. Nothing is changed.

    Exit code 0: it says what the files say; 1: it does not, or there is none.
    """
    workspace = workspace_with_desks(options)
    if desk is not None:
        known_desk(workspace, desk)
    with open_index(workspace) as index:
        found = index.check(desk)
    if options.json:
        print_json({'ok': not found, 'differences': msgspec.to_builtins(found)})
    elif not found:
        click.echo(f'the index says what the files say ({workspace / index.path.name})')
    if found:
        if not options.json:
            _print_differences(found)
        raise click.exceptions.Exit(1)


def _print_differences(found: list[Difference]) -> None:
    for difference in found[:_DIFFERENCES_SHOWN]:
        place = ' '.join(filter(None, [difference.desk, difference.session_id, difference.table]))
        click.echo(printable(f'{place}: {difference.what}'))
    if len(found) > _DIFFERENCES_SHOWN:
        click.echo(f'… and {len(found) - _DIFFERENCES_SHOWN:,} more')
    click.echo('hint: `trading-agent index rebuild` makes it anew', err=True)
