"""The command line's entry: which commands there are, and how an error becomes an exit code.

Exit codes: 0 done, 1 failed or refused, 2 usage, 69 no daemon, 78 configuration, 130 interrupted. Each command's
module is imported only when it is used.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import IO, Any

import click

from trading_agent import __version__
from trading_agent.cli.options import global_options
from trading_agent.errors import ConfigurationError, DaemonUnreachable, TradingAgentError

COMMANDS = {
    'init': ('trading_agent.cli.init:init_command', 'Write a commented configuration into DIR, and say how to go on.'),
    'check': ('trading_agent.cli.check:check_command', 'Check the configuration.'),
    'run': ('trading_agent.cli.run:run_command', 'Run the daemon in the foreground.'),
    'reload': (
        'trading_agent.cli.reload:reload_command',
        "Put the configuration in force that the daemon's file says now.",
    ),
    'status': ('trading_agent.cli.desks:status_command', 'Show how the daemon and its desks are.'),
    'events': ('trading_agent.cli.events:events_command', 'Show what happens, as it happens.'),
    'send': ('trading_agent.cli.send:send_command', 'Send a trigger to a desk.'),
    'cancel': ('trading_agent.cli.hold:cancel_command', 'Cancel a trigger that waits or runs.'),
    'why': ('trading_agent.cli.why:why_command', 'Tell what became of a trigger, and where its exchange is.'),
    'pause': ('trading_agent.cli.hold:pause_command', 'Hold a desk: nothing is run until `resume`.'),
    'resume': ('trading_agent.cli.hold:resume_command', 'Let a paused or parked desk go on.'),
    'rollover': ('trading_agent.cli.desks:rollover_command', "End a desk's session now and begin a new one."),
    'backends': ('trading_agent.cli.backends:backends_command', 'Show the backends; try one, or take it out of use.'),
    'sessions': ('trading_agent.cli.records:sessions_command', "List a desk's sessions, newest first."),
    'show': ('trading_agent.cli.show:show_command', 'Show the exchanges of a session.'),
    'summaries': ('trading_agent.cli.records:summaries_command', "Show a desk's daily summaries, newest first."),
    'export': ('trading_agent.cli.export:export_command', 'Write a session as a document.'),
    'search': ('trading_agent.cli.search:search_command', 'Search what was said at the desks.'),
    'index': ('trading_agent.cli.index:index_command', 'Look after the index that `search` reads.'),
    'memory': (
        'trading_agent.cli.memory:memory_command',
        "Show a desk's Memory.md, and what each session changed in it.",
    ),
    'skills': ('trading_agent.cli.skills:skills_command', "List a desk's skills, and decide on changes to them."),
    'verify': ('trading_agent.cli.verify:verify_command', 'Tell whether everything on disk is whole.'),
    'repair': ('trading_agent.cli.repair:repair_command', 'Mend what there can be no doubt about.'),
    'replay': ('trading_agent.cli.replay:replay_command', 'Run recorded days through a desk, in simulated time.'),
}
"""Each command with where it is and what it does, in the order of the help."""


class Failure(click.ClickException):
    """An error of ours as click shows it: a line that says what, and one that says what to do about it."""

    def __init__(self, error: TradingAgentError) -> None:
        super().__init__(str(error))
        self.exit_code = _exit_code(error)  # type: ignore[misc] # an instance's own
        if isinstance(error, ConfigurationError):
            self._told = [(f'{problem.where}: {problem.what}', problem.hint) for problem in error.problems]
        else:
            self._told = [(str(error), error.hint)]

    def show(self, file: IO[Any] | None = None) -> None:
        """Writes it to stderr."""
        for what, hint in self._told:
            click.echo(f'error: {" ".join(what.split())}', file=file, err=True)
            if hint:
                click.echo(f'hint: {" ".join(hint.split())}', file=file, err=True)


def _exit_code(error: TradingAgentError) -> int:
    if isinstance(error, DaemonUnreachable):
        return 69
    return 78 if isinstance(error, ConfigurationError) else 1


class LazyGroup(click.Group):
    """A group that imports a command only when it is called, and turns our errors into exit codes.

    Args:
        lazy: Each command's name with its `module:object` and its line in the help.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order of the help."""
        del ctx
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None where there is none of that name."""
        del ctx
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name][0].partition(':')
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)  # noqa: S101 - a mistake in the table
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, or tells the nearest one."""
        if args and args[0] not in self._lazy and not args[0].startswith('-'):
            import difflib

            near = difflib.get_close_matches(args[0], self._lazy, 1)
            ctx.fail(f'there is no command {args[0]!r}' + (f'; did you mean {near[0]!r}?' if near else ''))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        del ctx
        with formatter.section('Commands'):
            formatter.write_dl([(name, about) for name, (_, about) in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click's
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except TradingAgentError as error:
            raise Failure(error) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None


@click.command(cls=LazyGroup, lazy=COMMANDS, context_settings={'help_option_names': ['-h', '--help']})
@click.version_option(__version__, prog_name='trading-agent')
@global_options
def cli() -> None:
    """Keeps LLM trading desks in session.

    The options can stand before or after the command. Without --workspace a client looks for the daemon in the
    workspace that `run` would choose, then in /run/trading-agent.
    """


def main() -> None:
    """Runs the command line and exits."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is escaped, and is no crash.
        if hasattr(stream, 'reconfigure'):
            stream.reconfigure(errors='backslashreplace')
    try:
        cli.main(prog_name='trading-agent')
    except KeyboardInterrupt:
        sys.exit(130)
