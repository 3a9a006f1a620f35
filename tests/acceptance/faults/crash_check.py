"""Opens what a power cut has left with the start of the desks, and looks whether every promise is kept."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

from auditor import DeskAudit, lines_of, modes
from desk_start import FURTHER, DeskStart
from findings import Fault
from scripted_story import TOOL, Mark

from trading_agent.daemon.desk import Desk
from trading_agent.events import DeskParked, StoreDamaged, WriteFailed
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.trigger import Trigger


class Promises:
    """What was acknowledged, told or done up to some moment.

    Attributes:
        accepted: The triggers by desk, in the order in which they were accepted.
        closed: The outcome that was told of each trigger, with its desk and session.
        effects: The triggers of which an order was placed.
        sessions: The sessions that were announced, each with its desk.
        ended: The digest that was told at the end of a session.
        summaries: The sessions whose summary was told to be on the disk.
        lessons: Those whose lesson was told to be in Memory.md.
        damages: What was told of damaged files.
        now: What time it was.
        count: How many promises there are.
    """

    def __init__(self, desks: Sequence[str], now: datetime) -> None:
        self.accepted: dict[str, list[str]] = {desk: [] for desk in desks}
        self.closed: dict[str, Mark] = {}
        self.effects: list[str] = []
        self.sessions: list[tuple[str, str]] = []
        self.ended: dict[tuple[str, str], str] = {}
        self.summaries: list[tuple[str, str]] = []
        self.lessons: list[tuple[str, str]] = []
        self.damages: list[str] = []
        self.now = now
        self.count = 0

    def take(self, mark: Mark) -> None:
        """Takes note of a promise."""
        self.count += 1
        self.now = datetime.fromisoformat(mark['now'])
        named = mark.get('desk', ''), mark.get('id', '')
        match mark['what']:
            case 'accepted':
                self.accepted[named[0]].append(named[1])
            case 'closed':
                self.closed[named[1]] = mark
            case 'effect':
                self.effects.append(named[1])
            case 'session':
                self.sessions.append(named)
            case 'ended':
                self.ended[named] = mark['digest']
            case 'summary':
                self.summaries.append(named)
            case 'damaged':
                self.damages.append(named[1])
            case 'memory':
                self.lessons.append(named)
            case _:
                pass


class Opening:
    """Opens states in one folder.

    Args:
        workspace: The workspace, which is given a new content before each check.
        indexed: Whether there is an index to be looked at.
    """

    def __init__(self, workspace: Path, *, indexed: bool = False) -> None:
        self._workspace = workspace
        self._indexed = indexed
        self.aside = 0
        self._taken_out: set[str] = set()  # what hung behind a hole of a journal, and was told

    async def check(self, promises: Promises, *, further: bool = False) -> list[Fault]:
        """Returns the promises that are not kept.

        Args:
            promises: What was promised before the power cut.
            further: Whether the desks go on until all is settled, answer one more trigger and are started once more.
        """
        ahead = [fault for desk in promises.accepted for fault in _ahead(self._workspace / 'desks' / desk)]
        if ahead:
            return ahead
        first = DeskStart(self._workspace, tuple(promises.accepted), promises.now)
        try:
            await first.start()
            found = list(await self._kept(first, promises, settled=False))
            if not found and further:
                found = await self._gone_on_with(first, promises)
        except Exception as error:  # noqa: BLE001 - whatever it is, no power cut may lead to it
            found = [Fault('broken', f'the start raises {type(error).__name__}: {error}')]
        return found

    async def _gone_on_with(self, first: DeskStart, promises: Promises) -> list[Fault]:
        async with first.running():
            await first.send_further()
            if not await first.rest():
                return [Fault('blocked', f'it does not come to rest: {first.told[-3:]}')]
        found = [
            Fault('twice', f'the order of {trigger_id} is placed again')
            for trigger_id, times in Counter(first.effects).items()
            if times > 1 or trigger_id in promises.effects
        ]
        for ids in promises.accepted.values():
            ids.append(FURTHER)
        try:
            second = DeskStart(self._workspace, tuple(promises.accepted), promises.now)
            await second.start()
            found += await self._kept(second, promises, settled=True)
        finally:
            for ids in promises.accepted.values():
                ids.pop()
        return found

    async def _kept(self, start: DeskStart, promises: Promises, *, settled: bool) -> Sequence[Fault]:
        found = [*self._of_events(start, promises), *modes(self._workspace)]
        for desk in start.desks:
            audit = DeskAudit(desk.folder, promises.accepted[desk.name], settled=settled)
            of_desk = [*audit.faults(), *_of_desk(desk, audit, promises), *await _of_repeats(desk, promises)]
            found += [Fault(kind, f'{desk.name}: {what}') for kind, what in of_desk]
        if self._indexed:
            found += self._of_index()
        return found

    def _of_events(self, start: DeskStart, promises: Promises) -> Iterator[Fault]:
        damages = [*promises.damages, *(event.error for event in start.told if isinstance(event, StoreDamaged))]
        announced = {desk for desk, _ in promises.sessions}
        for event in start.told:
            if isinstance(event, StoreDamaged) and event.line is None:
                if 'state is missing' in event.error and event.desk not in announced:
                    continue  # the very first start was cut off before it had anything to promise
                yield Fault('broken', f'a file is damaged: {event.path}: {event.error}')
            elif isinstance(event, WriteFailed | DeskParked):
                yield Fault('broken', f'it tells {event}')
        yield from self._of_files_aside(damages)

    def _of_files_aside(self, damages: Sequence[str]) -> Iterator[Fault]:
        """Yields what was set aside: nothing is ever damaged but a journal with a hole, and that is told.

        A crash in between may leave the same bytes under a second name, which is not told.
        """
        for place, _, names in os.walk(self._workspace / 'desks'):
            aside = [Path(place) / name for name in names if '.damaged-' in name]
            self._taken_out |= {path.name for path in aside for told in damages if path.name in told}
            told_bytes = [path.read_bytes() for path in aside if path.name in self._taken_out]
            for path in aside:
                if not place.endswith('/journal') or path.read_bytes() not in told_bytes:
                    yield Fault('broken', f'a file was set aside: {path.name}')

    def _of_index(self) -> Iterator[Fault]:
        """Reads on in the index as it was left, and compares it with the files; one that is damaged is made anew."""
        with SqliteIndex(self._workspace, self._note_aside) as index:
            index.catch_up()
            for difference in index.check(patience=0):
                yield Fault('lost', f'the index is not what the files say: {difference}')

    def _note_aside(self, path: Path, error: str) -> None:
        self.aside += 1


def _ahead(folder: Path) -> Iterator[Fault]:
    """Yields where a backend is taken to know more than was kept. It is looked for before a start mends it."""
    path = folder / 'sessions' / 'state.json'
    try:
        state = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return  # a start makes it anew from the log; that it was whole is held against the damage that is told
    for name, route in state['routes'].items():
        log = folder / 'sessions' / f'{state["session_id"]}.jsonl'
        there = sum(line is not None for _, line in lines_of(log))
        if route['exchanges_seen'] > there:
            yield Fault('broken', f'{name} has seen {route["exchanges_seen"]} exchanges of {there}')


def _of_desk(desk: Desk, audit: DeskAudit, promises: Promises) -> Iterator[Fault]:
    """Yields what was told of a desk and is not in its files."""
    for trigger_id, told in promises.closed.items():
        if told['desk'] == desk.name:
            yield from _of_closing(trigger_id, told, audit)
    for trigger_id in promises.effects:
        if trigger_id in promises.accepted[desk.name]:
            yield from _of_effect(trigger_id, desk.folder, audit)
    yield from _of_sessions(desk.name, desk.folder, promises)


def _of_closing(trigger_id: str, told: Mark, audit: DeskAudit) -> Iterator[Fault]:
    outcome, outcomes = told['outcome'], [each['outcome'] for each in audit._closed.get(trigger_id, [])]
    if outcome == 'answered':
        if (trigger_id, told['session_id']) not in audit._answers():
            yield Fault('lost', f'{trigger_id} was told to be answered, and has no exchange')
    elif trigger_id in audit._open or outcome not in outcomes:
        yield Fault('lost', f'{trigger_id} was told to be {outcome}, and is not')


def _of_sessions(desk: str, folder: Path, promises: Promises) -> Iterator[Fault]:
    for name, session_id in promises.sessions:
        for place in ('sessions', 'journal'):
            if name == desk and not (folder / place / f'{session_id}.jsonl').exists():
                yield Fault('lost', f'{session_id} was announced, and has no file in {place}')
    for (name, session_id), digest in promises.ended.items():
        if name == desk and _last_digest(folder / 'journal' / f'{session_id}.jsonl') != digest:
            yield Fault('lost', f'the journal {session_id} does not end as was told')
    for name, session_id in promises.summaries:
        path = folder / 'sessions' / 'summaries' / f'{session_id[:10]}.md'
        if name == desk and f'summary of {session_id}\n' not in _text(path):
            yield Fault('lost', f'the summary of {session_id} was told to be written, and is not there')
    for name, session_id in promises.lessons:
        if name == desk and f'lesson of {session_id}\n' not in _text(folder / 'Memory.md'):
            yield Fault('lost', f'the lesson of {session_id} was told to be in Memory.md, and is not')


def _of_effect(trigger_id: str, folder: Path, audit: DeskAudit) -> Iterator[Fault]:
    if trigger_id in audit._open:
        yield Fault('twice', f'the order of {trigger_id} was placed, and it would be run again')
    calls = [
        line
        for path in (folder / 'journal').glob('*.jsonl')
        for raw, line in lines_of(path)
        if TOOL.encode() in raw and line is not None and line['type'] == 'tool_call'
    ]
    if not any(call['arguments'] == {'key': trigger_id} for call in calls):
        yield Fault('lost', f'the order of {trigger_id} was placed, and is in no journal')


async def _of_repeats(desk: Desk, promises: Promises) -> list[Fault]:
    """Sends again what was acknowledged: it is known, and nothing is done."""
    found = []
    for trigger_id in promises.accepted[desk.name]:
        receipt = await desk.queue.accept(Trigger('again', desk.name, id=trigger_id))
        if receipt.status != 'duplicate':
            found.append(Fault('twice', f'{trigger_id}, sent again, is {receipt.status}'))
    return found


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ''


def _last_digest(path: Path) -> str:
    whole = [raw for raw, line in lines_of(path) if line is not None]
    return blake2b(whole[-1], digest_size=16).hexdigest() if whole else ''
