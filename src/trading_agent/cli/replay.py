"""`trading-agent replay`: recorded days through a desk, in simulated time."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import anyio
import click
import msgspec

from trading_agent import config
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.daemon.replay import Day, Replay, ReplayRefused, ReplayReport, read_day, refuse_unless_new
from trading_agent.memory.session_state import parse_date


def _days(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[Day]:
    days = []
    for value in values:
        text, _, file = value.partition('=')
        try:
            trading_date = parse_date(text)
        except ValueError as error:
            raise click.BadParameter(f'{value!r}: {error}; write 2025-12-16=FILE', context, parameter) from error
        days.append(read_day(trading_date, Path(file)))
    return days


@click.command('replay')
@click.option('--day', 'days', multiple=True, required=True, metavar='DATE=FILE', callback=_days, help='A day; repeat.')
@click.option('--desk', default='main', show_default=True, help='The desk that gets the triggers.')
@global_options
@pass_options
def replay_command(options: Options, days: list[Day], desk: str) -> None:
    """Run recorded days through a desk, in simulated time.

    Each line of a FILE that is not blank is a trigger; a day's are spread over 09:00 to 15:30 IST. Everything is
    written to --workspace, by default a new folder replay-FIRST-LAST. Exit 1 when a trigger is unaccounted for.
    """
    settings = _settings(options, days, desk)
    refuse_unless_new(settings.workspace, desk, days)
    with _progress(days, quiet=options.json) as on_progress:
        report = anyio.run(_replay, settings, days, on_progress)
    if options.json:
        click.echo(msgspec.json.encode(report))
    else:
        _print(report)
    sys.exit(0 if report.complete else 1)


async def _replay(settings: config.Config, days: list[Day], on_progress: Callable[[Day], None]) -> ReplayReport:
    return await Replay(settings, days, on_progress).run()


def _settings(options: Options, days: list[Day], desk: str) -> config.Config:
    workspace = options.workspace or Path(f'replay-{days[0].trading_date}-{days[-1].trading_date}')
    loaded = config.load(options.config, workspace)
    found = [settings for settings in loaded.desks if settings.name == desk]
    if not found:
        names = ', '.join(settings.name for settings in loaded.desks)
        raise ReplayRefused(f'no desk is named {desk!r}', f'the configuration has {names}')
    return msgspec.structs.replace(loaded, desks=found)


@contextmanager
def _progress(days: list[Day], *, quiet: bool) -> Iterator[Callable[[Day], None]]:
    """Shows a bar on a terminal, and nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[date, int] = {
            day.trading_date: int(bar.add_task(str(day.trading_date), total=len(day.lines))) for day in days
        }
        yield lambda day: bar.advance(tasks[day.trading_date])  # type: ignore[arg-type] # an int under another name


def _print(report: ReplayReport) -> None:
    triggers = sum(day.triggers for day in report.days)
    for day in report.days:
        lost = day.triggers - day.answered - day.failed
        click.echo(
            f'{day.date}  {day.triggers} triggers: {day.answered} answered, {day.failed} failed'
            + (f', {lost} UNACCOUNTED FOR' if lost else '')
        )
    sessions = ', '.join(f'{session.id} ({session.exchanges} exchanges)' for session in report.sessions) or 'none'
    click.echo(f'sessions:  {sessions}')
    click.echo(f'rollovers: {report.rollovers}')
    click.echo(f'summaries: {", ".join(map(str, report.summaries)) or "none"}')
    rate = triggers / report.wall_seconds if report.wall_seconds else 0
    click.echo(f'{triggers} turns in {report.wall_seconds:.1f} s, {rate:.0f} turns/s')
    click.echo(f'workspace: {report.workspace}')
