"""What happened in the turns of one trigger, as the desk's journals have it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from trading_agent import json_lines
from trading_agent.cli.journal_reading import Happening, JournaledLines, Line, turns_in
from trading_agent.cli.journal_view import described
from trading_agent.cli.render import india_time, parse_instant, plural, printable, usage_words
from trading_agent.conversation.records import NO_RECORD, MessageSaid, SessionHeader, TurnBegun, TurnCut, decode_record
from trading_agent.memory.damage import Damage
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.trigger_story import TriggerStory, sessions_since
from trading_agent.messages import AssistantMessage, Usage
from trading_agent.trigger import storable

EVENTS_SHOWN = 5
_DIGEST_SHOWN = 12
_SEEN = MappingProxyType({'instructions': 'AGENTS.md', 'memory': 'Memory.md', 'tools': 'tools'})
"""What a turn sees beside its text, as its first record names the digests, and as people know it."""

_SHOWN = frozenset({'asked', 'tool_called', 'tool_result', 'tool_failed', 'backend_failed'})


class Attempt(msgspec.Struct, frozen=True):
    """One run of a trigger.

    Attributes:
        number: Which, from 1.
        session_id: The session in which it ran.
        path: That session's journal, within the desk's folder.
        turn: What the journal has of it.
    """

    number: int
    session_id: str
    path: str
    turn: JournaledLines

    @property
    def cut(self) -> TurnCut | None:
        """Its end, where it was interrupted."""
        return self.turn.end if isinstance(self.turn.end, TurnCut) else None

    @property
    def lines(self) -> tuple[int, int]:
        """The numbers of its first and its last line in the journal."""
        return self.turn.lines[0].number, self.turn.lines[-1].number

    @property
    def backend(self) -> str:
        """Who answered, or was being asked when it was cut off; empty where that is not known."""
        return self.turn.end.backend if self.turn.end is not None else ''

    @property
    def model(self) -> str:
        """The model that answered, as its backend said it; empty where it did not."""
        said = (line.record.message for line in reversed(self.turn.lines) if isinstance(line.record, MessageSaid))
        return next((message.model for message in said if isinstance(message, AssistantMessage)), '')


def find_attempts(folder: Path, story: TriggerStory, on_damage: Callable[[Damage], None]) -> list[Attempt]:
    """Returns the runs of a trigger that the journals know, in order.

    Args:
        folder: The desk's folder.
        story: What is known of the trigger.
        on_damage: Is told of each line about it that cannot be read.

    Raises:
        StorageError: A journal is there and cannot be read.
    """
    journals = folder / 'journal'
    last = story.closing.session_id if story.closing is not None else None
    found = []
    for session_id in sessions_since(journals, story.steps)[::-1]:
        if last is not None and split_session_id(session_id) > split_session_id(last):
            continue
        path = journals / f'{session_id}.jsonl'
        for turn in turns_in(_lines_of(path, story.id, on_damage)):
            number = turn.begun.attempt if turn.begun is not None else _attempt_of(turn)
            found.append(Attempt(number, session_id, f'journal/{path.name}', turn))
    return found


def _lines_of(path: Path, trigger_id: str, on_damage: Callable[[Damage], None]) -> Iterator[Line]:
    """Yields the records of a trigger's turns; the other lines are not decoded."""
    keys = [_key(trigger_id)]
    gathered: set[str] = set()
    for number, (_, line) in enumerate(json_lines.read_whole(path), 1):
        if not any(key in line for key in keys) and not _may_be_gathered(trigger_id, line):
            continue
        try:
            record = decode_record(line)
        except NO_RECORD as error:
            on_damage(Damage(path, number, f'{type(error).__name__}: {error}'[:500]))
            continue
        if isinstance(record, TurnBegun) and trigger_id in record.trigger_ids[1:]:
            # The turn has the id of the first of those that were gathered into it.
            gathered.add(record.turn_id)
            keys.append(b'"turn_id":' + msgspec.json.encode(record.turn_id))
        if isinstance(record, SessionHeader):
            continue
        if record.turn_id in gathered or record.turn_id.rpartition(':')[0] == trigger_id:
            yield Line(number, record)


def _may_be_gathered(trigger_id: str, line: bytes) -> bool:
    """Whether a line may begin a turn into which a trigger was gathered with others."""
    return b'"trigger_ids":[' in line and msgspec.json.encode(storable(trigger_id)) in line


def _key(trigger_id: str) -> bytes:
    """Returns how the turns of a trigger are named in a line."""
    try:
        return b'"turn_id":' + msgspec.json.encode(trigger_id)[:-1] + b':'
    except UnicodeEncodeError:
        return b'"turn_id":'


def _attempt_of(turn: JournaledLines) -> int:
    number = turn.lines[0].record.turn_id.rpartition(':')[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def usage_of_attempts(attempts: list[Attempt]) -> Usage:
    """Returns the tokens used for a trigger, in vain too."""
    return sum((attempt.turn.usage for attempt in attempts), Usage())


def events_as_json(attempts: list[Attempt]) -> list[dict[str, Any]]:
    """Returns what happened for programs: each with its attempt, its session, and the file and line that say so."""
    return [
        {
            'attempt': attempt.number,
            'session_id': attempt.session_id,
            'path': attempt.path,
            **msgspec.to_builtins(happening),
        }
        for attempt in attempts
        for happening in attempt.turn.happenings()
    ]


def turns_as_json(attempts: list[Attempt]) -> list[dict[str, Any]]:
    """Returns each run for programs: who answered, and the digests of what it saw; empty for what there was not."""
    return [
        {
            'attempt': attempt.number,
            'session_id': attempt.session_id,
            'backend': attempt.backend,
            'model': attempt.model,
            **{name: getattr(attempt.turn.begun, name, '') for name in _SEEN},
        }
        for attempt in attempts
    ]


def said_before(attempts: list[Attempt], number: int) -> str:
    """Returns how much had been said in a run when it was interrupted, in words; empty where nothing was."""
    told = [attempt for attempt in attempts if attempt.number == number and attempt.turn.said]
    return f'{plural(told[-1].turn.said, "character")} had been said' if told else ''


def cause_of(attempts: list[Attempt], number: int) -> str | None:
    """Returns by what a run was interrupted, as the journal says it; None where it does not."""
    return next((attempt.cut.cause for attempt in attempts if attempt.number == number and attempt.cut), None)


def facts_of(desk: str, attempts: list[Attempt]) -> Iterator[tuple[str, str]]:
    """Yields which model answered, what the last run saw, the tokens of all, and where they are journaled."""
    if attempts and attempts[-1].model:
        yield 'model', attempts[-1].model
    begun = attempts[-1].turn.begun if attempts else None
    digests = ((file, getattr(begun, name, '')) for name, file in _SEEN.items())
    saw = ', '.join(f'{file} {digest[:_DIGEST_SHOWN]}' for file, digest in digests if digest)
    if saw:
        yield 'saw', saw
    used = usage_of_attempts(attempts)
    if used:
        in_vain = used != attempts[-1].turn.usage
        yield 'tokens', usage_words(msgspec.to_builtins(used)) + (', over all attempts' if in_vain else '')
    places: dict[tuple[str, str], list[str]] = {}
    for attempt in attempts:
        first, last = attempt.lines
        places.setdefault((attempt.path, attempt.session_id), []).append(f'{first} to {last}')
    for (path, session_id), lines in places.items():
        told = ', '.join(lines if len(lines) <= EVENTS_SHOWN else [*lines[:2], '…', lines[-1]])
        yield 'journal', f'{path}, lines {told} (`trading-agent show {desk} {session_id} --journal`)'


def events_in_short(attempts: list[Attempt], width: int) -> list[str]:
    """Returns a line for each call of a tool, its result, and each backend that failed; of many, the first and last.

    Args:
        attempts: The runs of the trigger.
        width: How many columns there are.
    """
    told = [
        _in_short(happening, attempt, width, several=len(attempts) > 1)
        for attempt in attempts
        for happening in attempt.turn.happenings()
        if happening.what in _SHOWN
    ]
    if len(told) > EVENTS_SHOWN:
        left_out = len(told) - EVENTS_SHOWN + 1
        told[EVENTS_SHOWN // 2 : EVENTS_SHOWN // 2 + left_out] = [f'… {left_out} more; --json has them all']
    return told


def _in_short(happening: Happening, attempt: Attempt, width: int, *, several: bool) -> str:
    label, text = described(happening, attempt.turn)
    instant = parse_instant(happening.at)
    clock = india_time(happening.at, instant) if instant else '-'
    which = f'attempt {attempt.number}, ' if several else ''
    line = f'{clock}  {which}{label:<11}  ' + ' '.join(printable(text).split())
    return line if len(line) <= width else line[: width - 1] + '…'
