"""How `backends` looks to people."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from trading_agent.cli.render import (
    india_time,
    on_terminal,
    paint,
    plural,
    print_table,
    printable,
    short_count,
    span,
    span_of,
    terminal_width,
    usage_words,
    wrapped,
)


def print_backends(backends: Sequence[dict[str, Any]]) -> None:
    """Writes how each backend is, how each desk uses them, and what is wrong with which."""
    print_table(
        ['BACKEND', 'STATE', 'KIND', 'MODEL'],
        [[backend['name'], backend['state'], backend['kind'], backend['model'] or '-'] for backend in backends],
        coloured=1,
    )
    rows = list(_rows(backends))
    if rows:
        click.echo()
        print_table(['DESK', 'PLACE', 'BACKEND', 'TOKENS TODAY', 'BEHIND'], rows)
    told = [f'{backend["name"]}: {_trouble(backend)}' for backend in backends if _trouble(backend)]
    told += [f'{backend["name"]}: no desk uses it' for backend in backends if not backend['desks']]
    if told:
        click.echo()
    for line in told:
        for part in wrapped(printable(line), terminal_width()) if on_terminal() else [printable(line)]:
            click.echo(part)


def _rows(backends: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Yields how each desk uses its backends: the desks in the daemon's order, each one's backends by preference."""
    uses = [(use, backend) for backend in backends for use in backend['desks']]
    desks = list(dict.fromkeys(use['desk'] for use, _ in uses))
    before = None
    for use, backend in sorted(uses, key=lambda pair: (desks.index(pair[0]['desk']), pair[0]['place'])):
        state = '' if backend['state'] == 'up' else f' ({backend["state"]})'
        yield [
            use['desk'] if use['desk'] != before else '',
            'preferred' if use['place'] == 1 else str(use['place']),
            backend['name'] + state,
            _tokens(use),
            _gap(use),
        ]
        before = use['desk']


def _tokens(use: dict[str, Any]) -> str:
    used, budget = sum(use['usage'].values()), use['daily_token_budget']
    if not budget:
        return short_count(used) if used else '-'
    return f'{short_count(used)} of {short_count(budget)} ({used * 100 // budget}%)'


def _gap(use: dict[str, Any]) -> str:
    if not use['exchanges_behind']:
        return '-'
    return f'{plural(use["exchanges_behind"], "exchange")}, about {short_count(use["tokens_behind"])} tokens'


def _trouble(backend: dict[str, Any]) -> str:
    """Returns why a backend is not up, and what to do about it; empty where it is up."""
    told = []
    by_hand = backend['disabled']
    if by_hand is not None:
        why = f': {by_hand["reason"]}' if by_hand['reason'] else ''
        enable = f'`trading-agent backends enable {backend["name"]}`'
        told.append(f'disabled by {by_hand["by"]} at {india_time(by_hand["at"])} IST{why} ({enable})')
    if backend['failures']:
        times = 'failed' if backend['failures'] == 1 else f'failed {backend["failures"]} times in a row'
        wait = backend['retry_after_ms'] / 1000
        again = '' if by_hand else f'; tried again {f"in {span(wait)}" if wait else "with the next call"}'
        hint = f' ({backend["hint"]})' if backend['hint'] else ''
        told.append(f'{times}: {backend["error"]}{hint}{again}')
    return '; '.join(told)


def print_test(result: dict[str, Any], width: int) -> None:
    """Writes what came of a backend's test.

    Args:
        result: The result.
        width: How wide the names are.
    """
    name = f'{printable(result["name"]):<{width}}'
    whole = span_of(result['duration_ms'] / 1000)
    if not result['ok']:
        click.echo(f'{name}  {paint("FAILED", "red", bold=True)}  after {whole}: {printable(_error(result))}')
        if result['hint']:
            click.echo(f'{"":<{width}}  hint: {printable(" ".join(result["hint"].split()))}')
        return
    told = [f'whole answer after {whole}']
    if result['first_output_ms'] is not None:
        told.insert(0, f'first output after {span_of(result["first_output_ms"] / 1000)}')
    told += [usage_words(result['usage'])] if any(result['usage'].values()) else []
    told += [f'model {printable(result["model"])}'] if result['model'] else []
    told += ['it stays disabled'] if result['state'] == 'disabled' else []
    click.echo(f'{name}  {paint("ok", "green")}      {", ".join(told)}')


def _error(result: dict[str, Any]) -> str:
    return ' '.join(f'{result["error_type"]}: {result["error"]}'.split())


def print_disabled(told: dict[str, Any]) -> None:
    """Writes that a backend is out of use, and warns of the desks that have no other."""
    name = printable(told['name'])
    click.echo(f'{name}: disabled for every desk; calls that run go on to their end')
    for desk in told['desks_waiting']:
        what = f'{printable(desk)} has no other backend in use: its triggers wait until one is enabled'
        click.echo(f'warning: {what}', err=True)


def print_enabled(told: dict[str, Any]) -> None:
    """Writes that a backend is in use again."""
    name = printable(told['name'])
    if not told['changed']:
        click.echo(f'{name}: nothing to do, it is in use')
    elif told['state'] == 'failing':
        click.echo(f'{name}: enabled; it had failed before, and is tried once its cool-down is over')
    else:
        click.echo(f'{name}: enabled')
