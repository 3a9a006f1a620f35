"""`why`: one trigger's whole story on one screen, from the files, whether a daemon runs or not."""

import difflib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from trading_agent.cli.journal_view import CAUSES
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import desk_folder, tell_damage
from trading_agent.cli.render import (
    india_time,
    on_terminal,
    paint,
    parse_instant,
    print_json,
    printable,
    span,
    span_of,
    terminal_width,
    wrapped,
)
from trading_agent.cli.turn_story import (
    Attempt,
    cause_of,
    events_as_json,
    events_in_short,
    facts_of,
    find_attempts,
    said_before,
    turns_as_json,
    usage_of_attempts,
)
from trading_agent.errors import TradingAgentError
from trading_agent.memory.damage import Damage
from trading_agent.memory.trigger_story import Step, TriggerStory, known_ids, tell_story

LINES_OF_TEXT = 4
LINES_OF_ANSWER = 5
ATTEMPTS_SHOWN = 6
_IDS_TOLD = 8
_IDS_COMPARED = 5000
_PLAIN_WIDTH = 100
_LABEL = 14
_ENDINGS = {
    'stop': 'interrupted by a stop of the daemon',
    'pause': 'interrupted by `pause --now`',
    'no_backend': 'no backend could answer',
}
_COLOURS = {'answered': 'green', 'waiting': 'cyan', 'running': 'cyan', 'cut off': 'yellow'}


@click.command('why')
@click.argument('desk')
@click.argument('trigger_id', metavar='ID')
@global_options
@pass_options
def why_command(options: Options, *, desk: str, trigger_id: str) -> None:
    """Tell what became of a trigger, and where its exchange is.

    Of its turns it tells the model that answered, the digests of the instructions, the memory and the tools that it
    saw, the calls of tools with their results, failures of backends, how much had been said when one was interrupted,
    and the tokens used.

    It is read from the desk's files, whether a daemon runs or not. A part of the ID is enough where no other
    trigger's has it: its beginning, else any part.
    """
    folder = desk_folder(options, desk)
    story, damaged = find_story(folder, trigger_id)
    for damage in damaged:
        tell_damage(damage)
    turn = running_turn(folder, story)
    attempts = find_attempts(folder, story, tell_damage)
    now = datetime.now(UTC)
    if options.json:
        print_json(as_json(story, attempts, turn, now))
        return
    width = terminal_width() if on_terminal() else _PLAIN_WIDTH
    for line in story_lines(story, attempts, turn, now, width):
        click.echo(line)


def find_story(folder: Path, given: str) -> tuple[TriggerStory, list[Damage]]:
    """Returns the story of the trigger with this id, or with the only id that begins with it or has it in it.

    Raises:
        TradingAgentError: There is none, or more than one.
    """
    damaged: list[Damage] = []
    story = tell_story(folder, given, damaged)
    if story is not None:
        return story, damaged
    ids = known_ids(folder)
    part = given.removeprefix('…')  # as `events` shows a long one
    for matching in ([one for one in ids if one.startswith(part)], [one for one in ids if part in one]):
        if not part:
            break
        if len(matching) > 1:
            told = ', '.join(matching[-_IDS_TOLD:])
            hint = f'say more of it: {told}' + (', …' if len(matching) > _IDS_TOLD else '')
            raise TradingAgentError(f'{len(matching)} triggers of {folder.name} have {part!r} in their id', hint)
        if len(matching) == 1:
            found = tell_story(folder, matching[0], damaged)
            if found is not None:
                return found, damaged
    near = difflib.get_close_matches(given[:200], ids[-_IDS_COMPARED:], 3)
    hint = f'did you mean {" or ".join(near)}?' if near else f'the last ones are {", ".join(ids[-3:]) or "none"}'
    raise TradingAgentError(f'{folder.name} has had no trigger {given!r}', hint)


def running_turn(folder: Path, story: TriggerStory) -> dict[str, Any] | None:
    """Returns the trigger's turn where a daemon on this workspace runs it at this moment."""
    from trading_agent.cli.client import connect

    if story.outcome is not None:
        return None
    try:
        with connect(Options(workspace=folder.parent.parent)) as client:
            desks = json.loads(client.result(client.request('GET', '/v1/status', timeout=3)))['desks']
    except (TradingAgentError, ValueError, KeyError):
        return None
    turns: list[dict[str, Any] | None] = [desk['turn'] for desk in desks if desk['name'] == folder.name]
    ours = (turn for turn in turns if turn is not None and story.id in turn.get('trigger_ids', [turn['trigger_id']]))
    return next(ours, None)


def state_of(story: TriggerStory, turn: dict[str, Any] | None) -> str:
    """Returns how the trigger is: its outcome, or `running`, `waiting` or `cut off`."""
    if story.outcome is not None:
        return story.outcome
    if turn is not None:
        return 'running'
    return 'cut off' if story.steps and story.steps[-1].what == 'started' else 'waiting'


def as_json(story: TriggerStory, attempts: list[Attempt], turn: dict[str, Any] | None, now: datetime) -> dict[str, Any]:
    """Returns the story for programs."""
    trigger, place, closing = story.trigger, story.place, story.closing
    told: dict[str, Any] = {'id': story.id, 'desk': story.desk, 'state': state_of(story, turn).replace(' ', '_')}
    for name in ('source', 'priority', 'received_at', 'not_before', 'expires_at', 'text'):
        told[name] = msgspec.to_builtins(getattr(trigger, name)) if trigger is not None else None
    waited = story.waited(now)
    return told | {
        'waited_ms': None if waited is None else round(waited.total_seconds() * 1000),
        'attempts': sum(step.what == 'started' for step in story.steps),
        'turn': turn,
        'outcome': story.outcome,
        'closed_at': closing.at if closing else None,
        'session_id': place.session_id if place else closing.session_id if closing else None,
        'backend': place.exchange.backend_name if place else turn['backend'] if turn else None,
        'model': attempts[-1].model or None if attempts else None,
        'exchange': None
        if place is None
        else {'path': place.path, 'line': place.line, **place.exchange.to_json_dictionary()},
        'steps': msgspec.to_builtins(story.steps),
        'earlier': story.earlier,
        'turns': turns_as_json(attempts),
        'events': events_as_json(attempts),
        'usage': msgspec.to_builtins(usage_of_attempts(attempts)),
    }


def story_lines(
    story: TriggerStory, attempts: list[Attempt], turn: dict[str, Any] | None, now: datetime, width: int
) -> Iterator[str]:
    """Yields the story for people, in lines of a width."""
    state = state_of(story, turn)
    yield printable(f'{story.id}, a trigger of {story.desk}: ') + paint(state, _COLOURS.get(state, 'red'), bold=True)
    for name, value in _facts(story, attempts, turn, now):
        yield from _labelled(name, wrapped(printable(value), width - _LABEL, indent='') or [''])
    yield from _labelled('events', events_in_short(attempts, width - _LABEL))
    if story.trigger is not None:
        yield from _quoted('text', story.trigger.text, LINES_OF_TEXT, width)
    if story.place is not None:
        yield from _quoted('answer', story.place.exchange.answer, LINES_OF_ANSWER, width)


def _labelled(name: str, lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield paint(f'  {name if not number else "":<{_LABEL - 2}}', dim=True) + line


def _facts(
    story: TriggerStory, attempts: list[Attempt], turn: dict[str, Any] | None, now: datetime
) -> Iterator[tuple[str, str]]:
    trigger = story.trigger
    if trigger is not None:
        received = _clock(msgspec.to_builtins(trigger.received_at))
        yield 'received', f'{received} from {trigger.source}, priority {trigger.priority}'
        if trigger.not_before is not None:
            yield 'not before', _clock(msgspec.to_builtins(trigger.not_before))
        if trigger.expires_at is not None:
            yield 'expires', _clock(msgspec.to_builtins(trigger.expires_at))
    for step in story.steps:
        if step.what == 'accepted':
            yield 'accepted', _clock(step.at)
    waited = story.waited(now)
    if waited is not None:
        begun = any(step.what in ('started', 'closed') for step in story.steps)
        yield 'waited', span_of(waited.total_seconds()) + ('' if begun else ' so far')
    yield from _attempts(story, attempts, turn, now)
    yield from _ending(story, turn)
    yield from facts_of(story.desk, attempts)
    yield from _records(story)
    if story.earlier:
        times = 'once' if story.earlier == 1 else f'{story.earlier} times'
        yield 'earlier', f'the same id was used {times} before, more than a week ago'


def _attempts(
    story: TriggerStory, journaled: list[Attempt], turn: dict[str, Any] | None, now: datetime
) -> Iterator[tuple[str, str]]:
    """Yields each start with how it ended; many of them in short."""
    told = []
    begun = [step for step in story.steps if step.what == 'started']
    for step in begun:
        how = _how_it_ended(step, story, journaled, turn, now, last=step is begun[-1])
        told.append((f'attempt {step.attempt}', f'{_clock(step.at)}, {how}'))
    if len(told) > ATTEMPTS_SHOWN:
        left_out = len(told) - ATTEMPTS_SHOWN
        told[2 : 2 + left_out] = [('…', f'{left_out} more attempts; --json has them all')]
    yield from told


def _how_it_ended(
    step: Step,
    story: TriggerStory,
    journaled: list[Attempt],
    turn: dict[str, Any] | None,
    now: datetime,
    *,
    last: bool,
) -> str:
    """Returns in words what a start came to: by the queue's records, and where they do not say it, by the journal."""
    number = step.attempt or 0
    end = next((other for other in story.steps if other.what == 'interrupted' and other.attempt == number), None)
    cause, said = cause_of(journaled, number), said_before(journaled, number)
    if end is not None:
        how = f'{_ENDINGS.get(end.reason, end.reason)} {_after(step, end.at)}'
    elif last and story.outcome == 'answered' and story.place is not None:
        exchange = story.place.exchange
        return f'answered by {exchange.backend_name} {_after(step, exchange.finished_at)}'
    elif last and story.closing is not None:
        how = f'closed as {story.closing.reason} {_after(step, story.closing.at)}'
    elif cause is not None:
        how = f'cut off by {CAUSES.get(cause, cause)}'
    elif not last:
        how = 'cut off: the process or the desk ended'
    elif turn is not None:
        how = f'running on {turn["backend"] or "its backend"} for {span(_seconds(step.at, now))}'
    else:
        how = 'cut off, or running still where `status` does not show it'
    return how + (f'; {said}' if said else '')


def _ending(story: TriggerStory, turn: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    closing, place = story.closing, story.place
    if closing is not None:
        why = '' if closing.reason == 'answered' else '; the log says more: trigger_closed with this trigger_id'
        yield 'closed', f'{_clock(closing.at)} as {closing.reason}{why}'
    elif place is not None:
        yield 'closed', 'not yet: the daemon does it at its next start, for the exchange is there'
    elif turn is None:
        yield 'closed', f'not yet; `trading-agent status` tells how {story.desk} is'
    if place is not None:
        yield 'exchange', f'{place.path}, line {place.line} (`trading-agent show {story.desk} {place.session_id}`)'
    elif closing is not None and closing.reason == 'answered':
        yield 'exchange', f'not in session {closing.session_id}: was its log moved?'


def _records(story: TriggerStory) -> Iterator[tuple[str, str]]:
    if story.steps:
        lines: dict[str, list[str]] = {}
        for step in story.steps:
            lines.setdefault(step.path, []).append(str(step.line))
        told = (f'{path}, line{"s" * (len(found) > 1)} {_in_short(found)}' for path, found in lines.items())
        yield 'records', '; '.join(told)


def _in_short(numbers: list[str]) -> str:
    return ', '.join(numbers if len(numbers) <= ATTEMPTS_SHOWN else [*numbers[:3], '…', numbers[-1]])


def _quoted(name: str, text: str, most: int, width: int) -> Iterator[str]:
    lines = [line for line in printable(text.strip()).split('\n') if line.strip()]
    for number, line in enumerate(lines[:most]):
        more = len(lines) - most
        rest = f' (and {more} more line{"" if more == 1 else "s"})' if number == most - 1 and more > 0 else ''
        label = paint(f'  {name if not number else "":<{_LABEL - 2}}', dim=True)
        yield label + _fitted(line, width - _LABEL - len(rest)) + rest


def _fitted(text: str, width: int) -> str:
    flat = ' '.join(text.split())
    return flat if len(flat) <= width else flat[: max(1, width - 1)] + '…'


def _clock(text: str) -> str:
    return f'{india_time(text)} IST'


def _seconds(begin: str, end: datetime) -> float:
    began = parse_instant(begin)
    return (end - began).total_seconds() if began is not None else 0.0


def _after(begun: Step, end: str) -> str:
    ended = parse_instant(end)
    return '' if ended is None else f'after {span_of(_seconds(begun.at, ended))}'
