"""`send`: a person's trigger for a desk."""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import IST, print_json, printable
from trading_agent.errors import TradingAgentError

RECEIPT_FIELDS = ('id', 'desk', 'status', 'reason')
NO_RESULT: dict[str, Any] = dict.fromkeys(('receipt', 'outcome', 'answer', 'backend', 'session_id'))
OUTCOME_HINTS = {
    'failed': 'no backend could have answered it: the log says why, under trigger_closed',
    'stale': 'it had expired before its turn came; send it again with more time',
    'cancelled': 'somebody took it back',
    'quarantined': 'it was cut off three times; look into the log before it is sent again',
    'unknown': 'it was cut off after a tool may have acted; the desk was told and decides',
}


def parse_at(text: str, now: datetime) -> datetime:
    """Reads when a trigger is to run: a time of the day in India, today or else tomorrow, or a whole instant.

    Args:
        text: `15:10`, `15:10:30`, or ISO 8601 with a zone.
        now: The present.

    Raises:
        ValueError: It is written another way, or has no zone.
    """
    if re.fullmatch(r'\d{1,2}:\d{2}(:\d{2})?', text):
        try:
            hour, minute, second = (int(part) for part in [*text.split(':'), '0'][:3])
            today = now.astimezone(IST).replace(hour=hour, minute=minute, second=second, microsecond=0)
        except ValueError as error:
            raise ValueError(f'{text} is no time of the day: {error}') from None
        return today if today > now else today + timedelta(days=1)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.utcoffset() is None:
        raise ValueError(f'write it like 15:10 (in India) or 2026-10-19T15:10:00+05:30, not {text!r}')
    return instant


def parse_expiry(text: str, start: datetime) -> datetime:
    """Reads how long a trigger matters, such as `10m`, and returns when it expires.

    Raises:
        ValueError: It is written another way, or too long.
    """
    from trading_agent.units import Duration

    try:
        return start + timedelta(seconds=Duration.parse(text))
    except OverflowError:
        raise ValueError(f'{text} is too long') from None


def new_id() -> str:
    """Returns an id for a trigger, like `trading_agent.trigger.new_trigger_id`, which takes longer to import."""
    return f'{time.time_ns():016x}-{os.urandom(6).hex()}'


def trigger_body(
    text: str, trigger_id: str | None, priority: str, at: str | None, expires_in: str | None
) -> dict[str, Any]:
    """Returns what is sent to the daemon.

    Raises:
        BadParameter: A time makes no sense.
    """
    now = datetime.now(UTC)
    body = {'id': new_id() if trigger_id is None else trigger_id, 'text': text}
    body |= {'priority': priority, 'source': 'cli'}
    start, option = now, '--at'
    try:
        if at is not None:
            start = parse_at(at, now)
            body['not_before'] = start.isoformat()
        option = '--expires-in'
        if expires_in is not None:
            body['expires_at'] = parse_expiry(expires_in, start).isoformat()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    return body


def text_from(argument: str) -> str:
    """Returns the text: the argument, or stdin for `-`, without the newline that ends it."""
    if argument != '-':
        return argument
    try:
        return sys.stdin.buffer.read().decode('utf-8-sig').rstrip('\r\n')
    except UnicodeDecodeError as error:
        raise TradingAgentError(f'standard input is not UTF-8 (byte {error.start})') from None


@click.command('send')
@click.argument('desk')
@click.argument('text')
@click.option('--id', 'trigger_id', metavar='ID', help='The same id twice is one trigger. Default: a new one.')
@click.option(
    '--priority', type=click.Choice(['person', 'timer', 'feed']), default='person', show_default=True, help='Its place.'
)
@click.option(
    '--at', metavar='TIME', help='Not before 15:10 in India (today, or tomorrow if past), or ISO with a zone.'
)
@click.option('--expires-in', metavar='SPAN', help='Worth nothing after this time, such as 10m; counted from --at.')
@click.option('--wait', is_flag=True, help='Wait for the answer and print it as it comes.')
@global_options
@pass_options
def send_command(
    options: Options,
    *,
    desk: str,
    text: str,
    trigger_id: str | None,
    priority: str,
    at: str | None,
    expires_in: str | None,
    wait: bool,
) -> None:
    """Send a trigger to a desk. A TEXT of `-` is read from stdin.

    Exit code 0: accepted, or sent before, or with --wait answered; 1: refused, or closed without an answer.
    """
    from trading_agent.cli.client import connect, error_in, path_to

    body = trigger_body(text_from(text), trigger_id, priority, at, expires_in)
    with connect(options) as client:
        with _fate_unknown(body['id']):
            response = client.request('POST', path_to(desk, 'triggers') + ('?wait=true' if wait else ''), body)
        if response.status != 200:
            data = client.content(response)
            if options.json and (receipt := receipt_in(data)):
                print_json({**NO_RESULT, 'receipt': receipt} if wait else receipt)
            raise error_in(data)
        if wait:
            wait_for_answer(client.lines(response), body['id'], options)
            return
        with _fate_unknown(body['id']):
            receipt = json.loads(client.content(response))
    if options.json:
        print_json(receipt)
    elif receipt['status'] == 'duplicate':
        click.echo(f'duplicate {receipt["id"]}: {desk} was sent it before')
    else:
        click.echo(f'accepted {receipt["id"]}')


@contextmanager
def _fate_unknown(trigger_id: str) -> Iterator[None]:
    """Lets an error tell how to ask for a trigger that may have been accepted: it is never run twice."""
    try:
        yield
    except TradingAgentError as error:
        error.hint = f'it may have been accepted: send it again with --id {trigger_id} to see what became of it'
        raise


def receipt_in(data: bytes) -> dict[str, Any] | None:
    """Returns the receipt that a refusal carries, or None where it is another error."""
    try:
        told = json.loads(data)
        return {name: told[name] for name in RECEIPT_FIELDS}
    except (ValueError, KeyError, TypeError):
        return None


def wait_for_answer(lines: Iterator[dict[str, Any]], trigger_id: str, options: Options) -> None:
    """Shows the answer as it comes, or with `--json` the whole result at the end.

    Raises:
        TradingAgentError: There is no answer: the trigger was closed otherwise, or the daemon went away.
    """
    result = dict(NO_RESULT)
    shown = ''
    try:
        with _fate_unknown(trigger_id):
            shown = _shown_while_it_comes(lines, result, quiet=options.json)
    finally:
        if options.json:
            print_json(result)
    answer, outcome = result['answer'], result['outcome']
    if not options.json:
        if answer is not None and shown != answer:
            _end_line(shown)
            if shown:
                click.echo('(that was not all of it; the whole answer:)', err=True)
            shown = answer
            click.echo(printable(answer), nl=False)
        _end_line(shown)
    if outcome != 'answered':
        raise TradingAgentError(f'the trigger was closed as {outcome}', OUTCOME_HINTS.get(outcome, ''))


def _shown_while_it_comes(lines: Iterator[dict[str, Any]], result: dict[str, Any], *, quiet: bool) -> str:
    """Fills in the result and returns what was shown of the answer."""
    shown = ''
    try:
        for line in lines:
            if 'receipt' in line:
                result['receipt'] = line['receipt']
            elif 'result' in line:
                result.update(line['result'])
            elif 'restart' in line and not quiet:
                _end_line(shown)
                click.echo('(it was cut off and starts over:)', err=True)
                shown = ''
            elif 'text' in line and not quiet:
                click.echo(printable(line['text']), nl=False)
                shown += line['text']
    except TradingAgentError:
        _end_line(shown)
        raise
    return shown


def _end_line(shown: str) -> None:
    if shown and not shown.endswith('\n'):
        click.echo()
