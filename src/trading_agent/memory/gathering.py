"""Several messages of a feed as one: which of those that wait are gathered, and how they are told together."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from trading_agent.clock import INDIA
from trading_agent.memory.trigger_entry import Entry
from trading_agent.trigger import Trigger

MOST_TRIGGERS = 50
MOST_CHARS = 200_000
"""What is gathered into one turn at most; one message alone may be longer."""

_HEADING = '[{count} messages have come. Each follows under its number and its time, its lines marked with "> ".]'
_LINE_END = re.compile('\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]')
"""Whatever anybody may take for the end of a line: no message can begin one that is not marked."""


def may_be_gathered(entry: Entry) -> bool:
    """Whether a trigger waits for others: a feed's, never started, so that one that does harm is run alone."""
    return entry.trigger.priority == 'feed' and not entry.attempts


def fitting(entries: Iterable[Entry]) -> list[Entry]:
    """Returns as many of the first entries as one turn takes, at least one."""
    taken: list[Entry] = []
    size = 0
    for entry in entries:
        size += _size(entry.trigger)
        if taken and (size > MOST_CHARS or len(taken) >= MOST_TRIGGERS):
            break
        taken.append(entry)
    return taken


def is_full(entries: Sequence[Entry]) -> bool:
    """Whether one turn takes no more than these entries."""
    return len(entries) >= MOST_TRIGGERS or sum(_size(entry.trigger) for entry in entries) >= MOST_CHARS


def _size(trigger: Trigger) -> int:
    return len(trigger.text) + 2 * trigger.text.count('\n')


def gathered(triggers: Sequence[Trigger]) -> Trigger:
    """Returns triggers as one, with the id of the first: the same ones are always told in the same words.

    One alone stays as it is.
    """
    if len(triggers) == 1:
        return triggers[0]
    parts = [_HEADING.format(count=len(triggers))]
    for number, trigger in enumerate(triggers, 1):
        marked = '> ' + _LINE_END.sub(lambda end: f'{end[0]}> ', trigger.text)
        parts.append(f'[{number} of {len(triggers)}, {_time(trigger.received_at)}]\n{marked}')
    return replace(triggers[0], text='\n\n'.join(parts))


def _time(instant: datetime) -> str:
    try:
        return f'{instant.astimezone(INDIA):%Y-%m-%d %H:%M:%S} IST'
    except OverflowError:  # at the very end of what a datetime can say
        return f'{instant:%Y-%m-%d %H:%M:%S} UTC'
