"""`backends`: how the models are that desks run on; trying one, and taking one out of use and back."""

import json
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import click

from trading_agent.cli.hold import login_name, reason_why
from trading_agent.cli.main import LazyGroup
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import print_json
from trading_agent.errors import TradingAgentError

_HERE = 'trading_agent.cli.backends'

COMMANDS = {
    'test': (f'{_HERE}:backends_test_command', 'Make one tiny call of each backend, or of one.'),
    'disable': (f'{_HERE}:backends_disable_command', 'Take a backend out of use, for every desk.'),
    'enable': (f'{_HERE}:backends_enable_command', 'Take a backend into use again.'),
}
"""Each command of the group, as in `trading_agent.cli.main`."""

TEST_TIMEOUT_SECONDS = 120.0
"""How long the daemon may take to tell of a test; it has a time limit of its own."""


@click.command('backends', cls=LazyGroup, lazy=COMMANDS, invoke_without_command=True)
@global_options
@pass_options
@click.pass_context
def backends_command(context: click.Context, options: Options) -> None:
    """Show the backends; try one, or take it out of use.

    Alone it shows how each is, which desk uses it at which place, and what it has cost today. BEHIND is what of the
    desk's current session a backend has not seen: it is told that, or a digest of it, before it answers.
    """
    if context.invoked_subcommand is None:
        _show(options)


def _show(options: Options) -> None:
    from trading_agent.cli.backends_view import print_backends

    report = _asked(options, 'GET', '/v1/backends')
    if options.json:
        print_json(report)
    else:
        print_backends(report['backends'])


@click.command('test')
@click.argument('name', required=False)
@global_options
@pass_options
def backends_test_command(options: Options, name: str | None) -> None:
    """Make one tiny call of each backend, or of one, beside all desks.

    It tells how soon something and the whole of the answer came, and what was used. A real model is really asked, and
    costs a few tokens, which count for no desk; a disabled one is asked too. The first call since the daemon's start
    may load an SDK, which takes a second. An answer ends a cool-down, and a failure begins one. Exit code 1: one has
    failed.
    """
    from trading_agent.cli.backends_view import print_test

    if name is not None:
        names = [name]
    else:
        names = [backend['name'] for backend in _asked(options, 'GET', '/v1/backends')['backends']]
    width = max(map(len, names), default=0)
    results = {}
    for result in _tested(options, names):
        results[result['name']] = result
        if not options.json:
            print_test(result, width)
    failed = any(not result['ok'] for result in results.values())
    if options.json:
        print_json({'ok': not failed, 'backends': [results[name] for name in names]})
    if failed:
        raise click.exceptions.Exit(1)


def _tested(options: Options, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields what came of each backend's test, as it comes: all are tried at once, for a dead one takes its time.

    Raises:
        TradingAgentError: The daemon turned one down, or does not answer.
    """
    done: SimpleQueue[dict[str, Any] | TradingAgentError] = SimpleQueue()

    def test(name: str) -> None:
        try:
            done.put(_told(options, name, 'test', {'by': login_name()}, timeout=TEST_TIMEOUT_SECONDS))
        except TradingAgentError as error:
            done.put(error)

    for name in names:
        threading.Thread(target=test, args=(name,), daemon=True).start()
    for _ in names:
        result = done.get()
        if isinstance(result, TradingAgentError):
            raise result
        yield result


@click.command('disable')
@click.argument('name')
@reason_why
@global_options
@pass_options
def backends_disable_command(options: Options, name: str, reason: str) -> None:
    """Take a backend out of use, for every desk at once and until `enable`, also over restarts.

    Calls that run go on to their end; the next turn is given to the desk's next backend. This is how a failover is
    drilled. `status` shows who did it, and why.
    """
    from trading_agent.cli.backends_view import print_disabled

    told = _told(options, name, 'disable', {'by': login_name(), 'reason': reason})
    if options.json:
        print_json(told)
    else:
        print_disabled(told)


@click.command('enable')
@click.argument('name')
@global_options
@pass_options
def backends_enable_command(options: Options, name: str) -> None:
    """Take a backend into use again: the desks that prefer it give it their next turn."""
    from trading_agent.cli.backends_view import print_enabled

    told = _told(options, name, 'enable', {'by': login_name()})
    if options.json:
        print_json(told)
    else:
        print_enabled(told)


def _told(
    options: Options, name: str, what: str, body: dict[str, Any], *, timeout: float | None = None
) -> dict[str, Any]:
    """Tells the daemon what to do with a backend."""
    from trading_agent.cli.client import quoted

    return _asked(options, 'POST', f'/v1/backends/{quoted(name)}/{what}', body, timeout=timeout)


def _asked(
    options: Options, method: str, target: str, body: dict[str, Any] | None = None, *, timeout: float | None = None
) -> dict[str, Any]:
    """Asks the daemon.

    Raises:
        TradingAgentError: It turned it down; what and why, in its words.
    """
    from trading_agent.cli.client import TIMEOUT_SECONDS, connect

    with connect(options) as client:
        response = client.request(method, target, body, timeout=timeout or TIMEOUT_SECONDS)
        told: dict[str, Any] = json.loads(client.result(response))
    return told
