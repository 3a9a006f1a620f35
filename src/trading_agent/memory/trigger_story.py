"""One trigger's whole story, read from a desk's files: what became of it, when, and where its exchange is.

Nothing is changed, so that it can be told while a daemon works on the same files, or after its last one has ended.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from trading_agent import files, json_lines
from trading_agent.clock import instant_in, trading_date
from trading_agent.errors import StorageError
from trading_agent.events import Outcome
from trading_agent.memory.damage import Damage
from trading_agent.memory.exchange import NO_EXCHANGE, Exchange, decode_line
from trading_agent.memory.session_state import is_session_id, split_session_id
from trading_agent.memory.trigger_log import Accepted, Closed, Interrupted, Record, Started, decode
from trading_agent.trigger import Trigger

_READ_AGAIN = 5


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to a trigger.

    Attributes:
        at: When, as an ISO 8601 string in UTC.
        what: `accepted`, `started`, `interrupted` or `closed`.
        attempt: Which start of it, from 1; None for the others.
        reason: Why it was interrupted, or how it was closed; else empty.
        path: The file that says so, within the desk's folder.
        line: The line's number in that file, from 1.
        session_id: The session in which it was closed; None for the others.
    """

    at: str
    what: Literal['accepted', 'started', 'interrupted', 'closed']
    attempt: int | None
    reason: str
    path: str
    line: int
    session_id: str | None = None


class Place(msgspec.Struct, frozen=True):
    """Where a trigger's exchange is.

    Attributes:
        session_id: The session.
        path: Its log, within the desk's folder.
        line: The line's number in that file, from 1.
        exchange: The exchange.
    """

    session_id: str
    path: str
    line: int
    exchange: Exchange


class TriggerStory(msgspec.Struct, frozen=True):
    """What is known of one trigger.

    Attributes:
        id: Its id.
        desk: The desk's name.
        trigger: The trigger; None where the file with its text is gone.
        steps: What happened to it, in order.
        place: Where its exchange is, or None.
        earlier: How many triggers had the same id before, more than a week ago; this is about the last one.
    """

    id: str
    desk: str
    trigger: Trigger | None
    steps: list[Step]
    place: Place | None
    earlier: int

    @property
    def closing(self) -> Step | None:
        """How it was closed, or None while it is open."""
        return next((step for step in self.steps if step.what == 'closed'), None)

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; `answered` also where its exchange proves that and its closing is still to be written."""
        if self.closing is not None:
            outcome: Outcome = msgspec.convert(self.closing.reason, Outcome)
            return outcome
        return 'answered' if self.place is not None else None

    @property
    def due_at(self) -> datetime | None:
        """From when on it could be run: it was accepted, and its `not_before` had come."""
        accepted = next((instant_in(step.at) for step in self.steps if step.what == 'accepted'), None)
        not_before = self.trigger.not_before if self.trigger else None
        return max(filter(None, (accepted, not_before)), default=None)

    def waited(self, now: datetime) -> timedelta | None:
        """Returns how long it waited, from when it was due, for its first start or else its closing or `now`."""
        ends = (instant_in(step.at) for step in self.steps if step.what in ('started', 'closed'))
        due = self.due_at
        return None if due is None else max(timedelta(), (next(ends, None) or now) - due)


def tell_story(folder: Path, trigger_id: str, damaged: list[Damage] | None = None) -> TriggerStory | None:
    """Returns the story of a trigger, or None where no file knows it.

    Args:
        folder: The desk's folder.
        trigger_id: The whole id.
        damaged: Gets each line about it that cannot be read.

    Raises:
        StorageError: A file is there and cannot be read.
    """
    found = _records_of(folder, trigger_id, [] if damaged is None else damaged)
    lives = _lives(found)
    trigger, steps = lives[-1] if lives else (None, [])
    place = find_exchange(folder, trigger_id, steps)
    if not steps and place is None:
        return None
    return TriggerStory(trigger_id, folder.name, trigger, steps, place, max(0, len(lives) - 1))


def known_ids(folder: Path) -> list[str]:
    """Returns the id of every trigger that the files know, in the order in which they first tell of it."""
    seen: dict[str, None] = {}
    for path in _files(folder):
        for _, line in json_lines.read(path):
            try:
                record = decode(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, Accepted):
                seen[record.trigger.id] = None
            elif isinstance(record, Closed):
                seen[record.id] = None
    return list(seen)


def find_exchange(folder: Path, trigger_id: str, steps: list[Step]) -> Place | None:
    """Returns where the exchange of a trigger is: the last one with its id, or None.

    Raises:
        StorageError: A session's log is there and cannot be read.
    """
    sessions = folder / 'sessions'
    key = _quoted(trigger_id)
    for session_id in _sessions_to_search(sessions, steps):
        path = sessions / f'{session_id}.jsonl'
        place: Place | None = None
        for number, line in json_lines.read(path):
            if key not in line:
                continue
            try:
                exchange = decode_line(line)
            except NO_EXCHANGE:
                continue
            if trigger_id in exchange.answers:
                place = Place(session_id, f'sessions/{path.name}', number, exchange)
        if place is not None:
            return place
    return None


def _sessions_to_search(sessions: Path, steps: list[Step]) -> list[str]:
    """Returns the sessions that can hold the exchange, newest first."""
    closing = next((step for step in steps if step.what == 'closed'), None)
    if closing is not None and closing.reason != 'answered':
        return []
    if closing is not None and closing.session_id is not None and is_session_id(closing.session_id):
        return [closing.session_id]
    return sessions_since(sessions, steps)


def sessions_since(folder: Path, steps: list[Step]) -> list[str]:
    """Returns the sessions that have a file in a folder and can have to do with a trigger, newest first.

    None from before it was accepted; a desk that trades past midnight may still be in the session of the day before.
    """
    names = (name.removesuffix('.jsonl') for name in files.names_in(folder) if name.endswith('.jsonl'))
    known = sorted(filter(is_session_id, names), key=split_session_id, reverse=True)
    accepted = next((instant_in(step.at) for step in steps if step.what == 'accepted'), None)
    if accepted is None:
        return known
    earliest = trading_date(accepted) - timedelta(days=1)
    return [session_id for session_id in known if split_session_id(session_id)[0] >= earliest]


def _records_of(folder: Path, trigger_id: str, damaged: list[Damage]) -> list[tuple[Record, str, int]]:
    """Returns the records of a trigger with the file and line of each, in the order in which they were written."""
    for _ in range(_READ_AGAIN):
        paths = _files(folder)
        found = list(_read(folder, paths, trigger_id, damaged))
        # A rollover may have moved the lines on to another file meanwhile.
        if _files(folder) == paths:
            break
        damaged.clear()
    return found


def _files(folder: Path) -> list[Path]:
    """Returns the files of triggers, oldest first; one that has two names for a moment is there once."""
    archive = folder / 'triggers'
    names = (name.removesuffix('.jsonl') for name in files.names_in(archive) if name.endswith('.jsonl'))
    paths = [archive / f'{name}.jsonl' for name in sorted(filter(is_session_id, names), key=split_session_id)]
    by_inode: dict[tuple[int, int], Path] = {}
    for path in [folder / 'triggers.jsonl', *reversed(paths)]:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError('read', path, error) from error
        by_inode.setdefault((status.st_dev, status.st_ino), path)
    return list(reversed(by_inode.values()))


def _read(folder: Path, paths: list[Path], trigger_id: str, damaged: list[Damage]) -> Iterator[tuple[Record, str, int]]:
    key = _quoted(trigger_id)
    for path in paths:
        for number, line in json_lines.read(path):
            if key not in line:
                continue
            try:
                record = decode(line)
            except (ValueError, RecursionError) as error:
                damaged.append(Damage(path, number, f'{type(error).__name__}: {error}'[:500]))
                continue
            own = record.trigger.id if isinstance(record, Accepted) else getattr(record, 'id', None)
            if own == trigger_id:
                yield record, os.fspath(path.relative_to(folder)), number


def _quoted(trigger_id: str) -> bytes:
    """Returns an id as it stands in a line."""
    try:
        return msgspec.json.encode(trigger_id)
    except UnicodeEncodeError:
        return b'"'  # in every line, and no id is equal to it


def _lives(records: list[tuple[Record, str, int]]) -> list[tuple[Trigger | None, list[Step]]]:
    """Returns what happened to each trigger that had the id; ids are forgotten after a week.

    A rollover writes what is still open, and how that came to be, into its new file once more: these lines say
    nothing new, and have lost the times of all but the first.
    """
    lives: list[tuple[Trigger | None, list[Step]]] = []
    for record, path, line in records:
        step = _step(record, path, line)
        if step is None:
            continue
        steps = lives[-1][1] if lives else []
        closed = any(known.what == 'closed' for known in steps)
        if isinstance(record, Accepted) and (not lives or closed):
            lives.append((record.trigger, [step]))
        elif not lives:
            lives.append((None, [step]))
        elif isinstance(record, Accepted) or closed or _told_before(step, steps):
            continue
        else:
            steps.append(step)
    return lives


def _step(record: Record, path: str, line: int) -> Step | None:
    match record:
        case Accepted(at=at):
            return Step(at, 'accepted', None, '', path, line)
        case Started(at=at, attempt=attempt):
            return Step(at, 'started', attempt, '', path, line)
        case Interrupted(at=at, attempt=attempt, reason=reason):
            return Step(at, 'interrupted', attempt, reason, path, line)
        case Closed(at=at, outcome=outcome, session_id=session_id):
            return Step(at, 'closed', None, outcome, path, line, session_id)
        case _:
            return None


def _told_before(step: Step, steps: list[Step]) -> bool:
    """Whether a line only repeats what an earlier file has: of an attempt that began there, nothing is new here."""
    if step.attempt is None:
        return False
    begun = next((known for known in steps if known.what == 'started' and known.attempt == step.attempt), None)
    return begun is not None and begun.path != step.path
