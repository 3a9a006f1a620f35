"""A desk that gathers what a feed sends into one turn; by a clock that goes when it is told to."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from daemon_fakes import MORNING, Gate, config_for, daemon_of, send, told, until
from index_days import rebuilt

from trading_agent.cli.turn_story import find_attempts
from trading_agent.clock import ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.desk import Desk as RunningDesk
from trading_agent.errors import TurnRefused
from trading_agent.events import Event, TriggerClosed, TurnFinished, TurnInterrupted, TurnStarted
from trading_agent.memory.gathering import MOST_CHARS, MOST_TRIGGERS, gathered
from trading_agent.memory.session_keeper import SessionKeeper
from trading_agent.memory.trigger_story import tell_story
from trading_agent.routing.turn_runner import Turn, TurnAnswered, TurnEvent
from trading_agent.trigger import Trigger
from trading_agent.turn_events import ToolCalled
from trading_agent.units import Duration

MINUTE = timedelta(minutes=1)
SESSION = '2026-03-10-1'
NOTE = '[This message was cut off before it was answered (this is attempt 2)'


class Box:
    """A desk that waits a minute, its clock, and the gate of its backend."""

    def __init__(self, tmp_path: Path, *, is_open: bool = True, seconds: float = 60, **backend: Any) -> None:  # noqa: ANN401
        self.folder = tmp_path / 'desks' / 'main'
        self.clock = ManualClock(MORNING)
        self.gate = Gate(is_open=is_open)
        self.tmp_path = tmp_path
        self.backend = Backend(**backend) if backend else self.gate.backend()
        self.seconds = seconds

    def config(self, seconds: float) -> Config:
        desk = Desk(name='main', backends=['it'], collect=Duration(seconds))
        return config_for(self.tmp_path, desks=[desk], backends={'it': self.backend})

    @asynccontextmanager
    async def running(self) -> AsyncIterator['Box']:
        async with daemon_of(self.config(self.seconds), self.clock) as self.daemon:
            yield self

    @property
    def desk(self) -> RunningDesk:
        return self.daemon.supervisor.desks['main']

    async def send(self, *ids: str, **fields: Any) -> None:  # noqa: ANN401
        for trigger_id in ids:
            await send(self.daemon, 'main', trigger_id, received_at=self.clock.now(), **fields)

    async def advance(self, **span: float) -> None:
        self.clock.advance(timedelta(**span))
        await quiet(self.daemon)

    async def empty(self) -> None:
        await until(lambda: not self.desk.queue.depth, 'everything is closed')
        await quiet(self.daemon)

    def exchanges(self) -> list[dict[str, Any]]:
        return lines(self.folder / 'sessions' / f'{SESSION}.jsonl')

    def answered(self) -> list[list[str]]:
        """Returns the triggers of each exchange."""
        return [exchange.get('trigger_ids', [exchange['trigger_id']]) for exchange in self.exchanges()]

    def records(self, *kinds: str) -> list[tuple[str, str]]:
        found = lines(self.folder / 'triggers.jsonl')
        return [(line['id'], line.get('outcome', line['type'])) for line in found if line['type'] in kinds]

    def sizes(self) -> list[int]:
        return [len(ids) for ids in self.answered()]


def lines(path: Path) -> list[dict[str, Any]]:
    """Returns a file's records."""
    return [json.loads(line) for line in path.read_bytes().split(b'\n') if line] if path.exists() else []


async def quiet(daemon: Daemon) -> None:
    """Lets the desk do whatever it would do now."""
    for _ in range(3):
        await daemon.supervisor.settled()
        for _ in range(5):
            await anyio.sleep(0.004)
    await daemon.supervisor.settled()


def together(*ids: str, at: Sequence[timedelta] = ()) -> str:
    """Returns what is told of these triggers."""
    instants = [MORNING + span for span in at] or [MORNING] * len(ids)
    sent = [Trigger(f'tell me about {one}', 'main', received_at=when) for one, when in zip(ids, instants, strict=True)]
    return gathered(sent).text


# -- waiting -----------------------------------------------------------------------------------------------------


async def test_it_waits_and_gathers(tmp_path: Path) -> None:
    """What a feed sends within a minute of the first is one turn, oldest first; then the next one waits again."""
    async with Box(tmp_path).running() as box:
        with box.daemon.bus.subscribe(TurnStarted, TurnFinished, TriggerClosed) as events:
            await box.send('a')
            await box.advance(seconds=20)
            await box.send('b')
            await box.advance(seconds=39)
            assert box.gate.seen == []
            assert box.desk.alarm == MORNING + MINUTE
            await box.advance(seconds=1)
            await box.empty()
            assert box.gate.seen == [together('a', 'b', at=[timedelta(), timedelta(seconds=20)])]
            seen = told(events, Event)
        assert [type(event).__name__ for event in seen] == [
            'TurnStarted', 'TriggerClosed', 'TriggerClosed', 'TurnFinished',
        ]  # fmt: skip
        begun, finished = seen[0], seen[-1]
        assert isinstance(begun, TurnStarted)
        assert isinstance(finished, TurnFinished)
        assert (begun.trigger_id, begun.triggers, begun.wait_ms) == ('a', 2, 60_000)
        assert (finished.trigger_id, finished.triggers) == ('a', 2)
        for trigger_id in 'ab':
            result = await box.desk.result_of(trigger_id)
            assert result is not None
            assert (result.outcome, result.answer) == ('answered', 'noted')
        await box.send('c')
        await box.advance(seconds=59)
        assert len(box.gate.seen) == 1
        await box.advance(seconds=1)
        await box.empty()
    assert box.gate.seen[1] == 'tell me about c'
    assert box.exchanges()[0]['trigger_text'] == box.gate.seen[0]
    assert box.answered() == [['a', 'b'], ['c']]
    assert 'trigger_ids' not in box.exchanges()[1]
    assert box.records('started', 'closed') == [
        ('a', 'started'), ('b', 'started'), ('a', 'answered'), ('b', 'answered'), ('c', 'started'), ('c', 'answered'),
    ]  # fmt: skip


async def test_off(tmp_path: Path) -> None:
    """Without `collect` each is run alone and at once."""
    async with Box(tmp_path, seconds=0).running() as box:
        await box.send('a', 'b')
        await box.empty()
    assert box.answered() == [['a'], ['b']]


async def test_persons_and_timers_do_not_wait(tmp_path: Path) -> None:
    """Persons and timers are answered at once and alone, while what a feed sent goes on waiting."""
    async with Box(tmp_path).running() as box:
        await box.send('a', 'b')
        await box.send('p', 'q', priority='person')
        await box.send('t', 'u', priority='timer')
        await until(lambda: box.desk.queue.depth == 2, 'they are answered')
        await box.advance(seconds=59)
        assert sorted(box.answered()) == [['p'], ['q'], ['t'], ['u']]
        await box.advance(seconds=1)
        await box.empty()
    assert box.answered()[4:] == [['a', 'b']]


async def test_due_later(tmp_path: Path) -> None:
    """A trigger that is due later waits from then on, and does not wait where another has waited long enough."""
    async with Box(tmp_path).running() as box:
        await box.send('later', not_before=MORNING + timedelta(seconds=30))
        await box.advance(seconds=89)
        assert box.gate.seen == []
        await box.advance(seconds=1)
        await box.empty()
        start = box.clock.now()
        await box.send('a')
        await box.send('b', not_before=start + timedelta(seconds=60))
        await box.send('c', not_before=start + timedelta(seconds=61))
        await box.advance(seconds=60)
        await until(lambda: len(box.exchanges()) == 2, 'the two that are due are answered')
        await box.advance(seconds=60)
        assert box.answered() == [['later'], ['a', 'b']]
        await box.advance(seconds=1)
        await box.empty()
    assert box.answered()[2:] == [['c']]


async def test_a_full_turn_does_not_wait(tmp_path: Path) -> None:
    """Fifty do not wait, and the rest follow at once; what comes after that waits."""
    box = Box(tmp_path)
    async with box.running():
        await box.send(*(f't{number}' for number in range(MOST_TRIGGERS - 1)))
        await quiet(box.daemon)
        assert box.gate.seen == []
        box.gate.shut()
        await box.send('last')
        await until(lambda: box.gate.seen, 'it is full')
        await box.send('x', 'y')
        box.gate.open()
        await quiet(box.daemon)
        assert box.sizes() == [MOST_TRIGGERS]
        await box.desk.pause('asha', '', now=False)
        await box.send(*(f'u{number}' for number in range(MOST_TRIGGERS + 3)))
        await box.desk.resume('asha')
        await box.empty()
        assert box.sizes() == [MOST_TRIGGERS, MOST_TRIGGERS, 5]
        assert box.answered()[1][:3] == ['x', 'y', 'u0']
        await box.send('z')
        await quiet(box.daemon)
        assert len(box.exchanges()) == 3
        await box.advance(seconds=60)
        await box.empty()
    assert box.answered()[3] == ['z']


async def test_large_ones(tmp_path: Path) -> None:
    """Messages that are too long for one turn together come in several, at once; one alone may be of any length."""
    async with Box(tmp_path).running() as box:
        for trigger_id, size in (('a', MOST_CHARS // 2), ('b', MOST_CHARS // 2 - 1), ('c', MOST_CHARS + 5), ('d', 3)):
            await quiet(box.daemon)
            assert box.gate.seen == []
            if trigger_id == 'c':
                await box.desk.pause('asha', '', now=False)
            await box.daemon.bus.send(Trigger('x' * size, 'main', id=trigger_id))
        await box.desk.resume('asha')
        await box.empty()
    assert box.answered() == [['a', 'b'], ['c'], ['d']]


async def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """Whoever waits when the clock is set back by an hour does not wait for that hour."""
    async with Box(tmp_path).running() as box:
        await box.send('a')
        await quiet(box.daemon)
        box.clock.step(-timedelta(hours=1))
        box.desk.wake()
        await box.empty()
    assert box.answered() == [['a']]


async def test_another_configuration(tmp_path: Path) -> None:
    """A changed `collect` holds for what waits."""
    async with Box(tmp_path, seconds=3600).running() as box:
        await box.send('a', 'b')
        await box.advance(minutes=5)
        assert box.gate.seen == []
        await box.daemon.configuration.apply(box.config(600))
        await box.advance(minutes=4)
        assert box.gate.seen == []
        await box.daemon.configuration.apply(box.config(0))
        await box.empty()
    assert box.answered() == [['a'], ['b']]


async def test_a_held_desk_is_not_woken_for_nothing(tmp_path: Path) -> None:
    """A paused desk whose messages have waited long enough asks for no further waking, and gathers at the resume."""
    async with Box(tmp_path).running() as box:
        await box.send('a')
        await box.desk.pause('asha', '', now=False)
        await box.send('b')
        await box.advance(minutes=2)
        assert box.desk.alarm is None
        assert box.gate.seen == []
        await box.desk.resume('asha')
        await box.empty()
    assert box.answered() == [['a', 'b']]


# -- what happens to single ones ---------------------------------------------------------------------------------


async def test_expired_while_it_waited(tmp_path: Path) -> None:
    """One that expires while it waits goes stale, and the others are told without it."""
    async with Box(tmp_path).running() as box:
        await box.send('a')
        await box.send('b', expires_at=MORNING + timedelta(seconds=30))
        await box.send('c')
        await box.advance(seconds=30)
        assert box.records('closed') == [('b', 'stale')]
        await box.advance(seconds=30)
        await box.empty()
    assert box.gate.seen == [together('a', 'c')]


async def test_gone_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cancelled or expires while the turn is prepared is not told: the rest is numbered anew."""
    prepare, waiting, go_on = SessionKeeper.prepare, anyio.Event(), anyio.Event()

    async def slow(self: SessionKeeper, trigger: Trigger) -> Trigger:
        waiting.set()
        await go_on.wait()
        return await prepare(self, trigger)

    monkeypatch.setattr(SessionKeeper, 'prepare', slow)
    async with Box(tmp_path).running() as box:
        await box.send('a')
        await box.send('b', expires_at=MORNING + timedelta(seconds=70))
        await box.send('c', 'd')
        box.clock.advance(timedelta(seconds=60))
        await waiting.wait()
        await box.desk.cancel('a', 'asha', 'old news')
        box.clock.advance(timedelta(seconds=10))
        go_on.set()
        await box.empty()
    assert box.gate.seen == [together('c', 'd')]
    assert box.answered() == [['c', 'd']]
    assert box.records('closed') == [('a', 'cancelled'), ('b', 'stale'), ('c', 'answered'), ('d', 'answered')]
    assert box.records('started') == [('c', 'started'), ('d', 'started')]


async def test_one_is_cancelled_in_the_turn(tmp_path: Path) -> None:
    """One of those that run together is cancelled without ending the turn, and is not closed again."""
    box = Box(tmp_path, is_open=False)
    async with box.running():
        with box.daemon.bus.subscribe(TriggerClosed, TurnInterrupted) as events:
            await box.send('a', 'b', 'c')
            box.clock.advance(MINUTE)
            await until(lambda: box.gate.seen, 'the turn runs')
            assert box.desk.turn is not None
            assert box.desk.turn.trigger_ids == ['a', 'b', 'c']
            for trigger_id in 'ab':
                result = await box.desk.cancel(trigger_id, 'asha', 'old news')
                assert result is not None
                assert result.outcome == 'cancelled'
            box.gate.open()
            await box.empty()
            closed = [(e.trigger_id, e.outcome) for e in told(events, TriggerClosed)]
    assert closed == [('a', 'cancelled'), ('b', 'cancelled'), ('c', 'answered')]
    assert box.records('closed') == closed
    assert box.answered() == [['a', 'b', 'c']]


async def test_all_are_cancelled_in_the_turn(tmp_path: Path) -> None:
    """With the last of those that run together the turn ends, without an exchange."""
    box = Box(tmp_path, is_open=False)
    async with box.running():
        await box.send('a', 'b')
        box.clock.advance(MINUTE)
        await until(lambda: box.gate.seen, 'the turn runs')
        async with anyio.create_task_group() as both:
            both.start_soon(box.desk.cancel, 'a', 'asha', '')
            both.start_soon(box.desk.cancel, 'b', 'ravi', '')
        await box.empty()
        assert box.desk.turn is None
    assert sorted(box.records('closed')) == [('a', 'cancelled'), ('b', 'cancelled')]
    assert box.answered() == []


async def test_a_pause_at_once(tmp_path: Path) -> None:
    """Those whose turn a pause cut off are run again one by one, each with the note; the turn's end is told once."""
    box = Box(tmp_path, is_open=False)
    async with box.running():
        with box.daemon.bus.subscribe(TurnInterrupted) as events:
            await box.send('a', 'b', 'c')
            box.clock.advance(MINUTE)
            await until(lambda: box.gate.seen, 'the turn runs')
            await box.desk.cancel('b', 'asha', '')
            await box.desk.pause('asha', '', now=True)
            (cut,) = told(events, TurnInterrupted)
            assert (cut.trigger_id, cut.triggers, cut.cause) == ('a', 3, 'pause')
            assert box.records('interrupted') == [('a', 'interrupted'), ('c', 'interrupted')]
            box.gate.open()
            await box.send('d')
            await box.desk.resume('asha')
            await until(lambda: box.desk.queue.depth == 1, 'a and c are answered')
            await box.advance(seconds=60)
            await box.empty()
    assert box.answered() == [['a'], ['c'], ['d']]
    assert [text.startswith(NOTE) for text in box.gate.seen] == [False, True, True, False]


class Bad:
    """A backend that refuses, or acts and fails."""

    def __init__(self, seen: list[str], how: str) -> None:
        self._seen = seen
        self._how = how

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        self._seen.append(turn.text)
        if len(self._seen) == 1 and self._how == 'refuses':
            raise TurnRefused('it is too long')
        if len(self._seen) == 1:
            yield ToolCalled('1', 'buy', {'symbol': 'TCS'})
            raise ConnectionError('gone')
        yield TurnAnswered('noted')


def bad(_: str, options: dict[str, Any]) -> Bad:
    """Makes a backend of this kind."""
    return Bad(**options)


async def test_refused(tmp_path: Path) -> None:
    """When a model refuses the turn, each of its triggers is closed as failed, with the reason."""
    seen: list[str] = []
    async with Box(tmp_path, kind='test_collect:bad', options={'seen': seen, 'how': 'refuses'}).running() as box:
        with box.daemon.bus.subscribe(TriggerClosed) as events:
            await box.send('a', 'b')
            box.clock.advance(MINUTE)
            await box.empty()
            closed = [(e.trigger_id, e.outcome, e.error) for e in told(events, TriggerClosed)]
    assert closed == [('a', 'failed', 'it is too long'), ('b', 'failed', 'it is too long')]


async def test_unknown(tmp_path: Path) -> None:
    """When the turn fails after it has acted, each of its triggers is closed as unknown and the desk is told once."""
    seen: list[str] = []
    async with Box(tmp_path, kind='test_collect:bad', options={'seen': seen, 'how': 'acts'}).running() as box:
        await box.send('a', 'b')
        box.clock.advance(MINUTE)
        await until(lambda: box.desk.queue.depth == 1 and box.desk.queue.closing('b'), 'they are closed')
        await box.advance(seconds=60)
        await box.empty()
    (follow_up,) = {trigger_id for trigger_id, _ in box.records('closed')} - {'a', 'b'}
    assert box.records('closed') == [('a', 'unknown'), ('b', 'unknown'), (follow_up, 'answered')]
    assert '- buy({"symbol":"TCS"})' in seen[1]
    assert seen[1].endswith(together('a', 'b'))


# -- crashes -----------------------------------------------------------------------------------------------------


def cut(path: Path, keep: int) -> None:
    """Leaves only the first lines of a file."""
    path.write_bytes(b''.join(path.read_bytes().splitlines(keepends=True)[:keep]))


def first(path: Path, kind: str) -> int:
    """Returns how many lines stand before the first one of a kind."""
    return [line['type'] for line in lines(path)].index(kind)


async def finished(tmp_path: Path) -> Box:
    """Returns a desk that has answered three triggers in one turn, and has stopped."""
    async with Box(tmp_path).running() as box:
        await box.send('a', 'b', 'c')
        box.clock.advance(MINUTE)
        await box.empty()
    assert box.answered() == [['a', 'b', 'c']]
    return box


async def restarted(box: Box, alone: Sequence[str], cut_off: int = 0) -> None:
    """Starts a desk again and checks that each trigger is answered, once, and which of them alone."""
    box.gate.seen.clear()
    async with box.running():
        await box.advance(minutes=2)
        await box.empty()
        for trigger_id in 'abc':
            result = await box.desk.result_of(trigger_id)
            assert result is not None
            assert (result.outcome, result.answer) == ('answered', 'noted')
    named = [trigger_id for ids in box.answered() for trigger_id in ids]
    assert sorted(named) == ['a', 'b', 'c']
    assert box.answered() == [*([one] for one in alone), *([[x for x in 'abc' if x not in alone]] * (len(alone) < 3))]
    assert sorted(set(box.records('closed'))) == [(one, 'answered') for one in 'abc']
    assert len(box.records('closed')) == 3
    assert sum(text.startswith(NOTE) for text in box.gate.seen) == cut_off


@pytest.mark.parametrize('closed', [0, 1, 2])
@pytest.mark.parametrize('journal_alone', [False, True])
async def test_killed_after_the_end(tmp_path: Path, closed: int, *, journal_alone: bool) -> None:
    """Killed once the turn's end is in the journal, each is closed as answered by the one exchange, and none is run."""
    box = await finished(tmp_path)
    before = box.exchanges()
    cut(box.folder / 'triggers.jsonl', first(box.folder / 'triggers.jsonl', 'closed') + closed * (not journal_alone))
    if journal_alone:
        cut(box.folder / 'sessions' / f'{SESSION}.jsonl', 0)
    await restarted(box, [])
    assert box.gate.seen == []
    assert box.exchanges() == before


@pytest.mark.parametrize('journal', [0, 1, 2])
async def test_killed_in_the_turn(tmp_path: Path, journal: int) -> None:
    """Killed in its middle, the turn is told as cut off once, and each of its triggers is run again alone."""
    box = await finished(tmp_path)
    cut(box.folder / 'triggers.jsonl', first(box.folder / 'triggers.jsonl', 'closed'))
    cut(box.folder / 'sessions' / f'{SESSION}.jsonl', 0)
    path = box.folder / 'journal' / f'{SESSION}.jsonl'
    cut(path, first(path, 'turn_started') + 1 + journal)
    await restarted(box, ['a', 'b', 'c'], cut_off=3)


@pytest.mark.parametrize('started', [0, 1, 3])
async def test_killed_as_it_began(tmp_path: Path, started: int) -> None:
    """Killed before the journal has the turn, those that were started are run alone, the others together."""
    box = await finished(tmp_path)
    cut(box.folder / 'triggers.jsonl', first(box.folder / 'triggers.jsonl', 'started') + started)
    cut(box.folder / 'sessions' / f'{SESSION}.jsonl', 0)
    path = box.folder / 'journal' / f'{SESSION}.jsonl'
    cut(path, first(path, 'turn_started'))
    await restarted(box, list('abc'[:started]), cut_off=started)


async def test_killed_after_it_had_acted(tmp_path: Path) -> None:
    """Killed after the turn had acted, each of its triggers that is open is unknown, and the desk is told once."""
    box = await finished(tmp_path)
    cut(box.folder / 'triggers.jsonl', first(box.folder / 'triggers.jsonl', 'closed') + 1)
    cut(box.folder / 'sessions' / f'{SESSION}.jsonl', 0)
    path = box.folder / 'journal' / f'{SESSION}.jsonl'
    cut(path, first(path, 'message') + 1)
    call = {'type': 'tool_call', 'number': 9, 'turn_id': 'a:1', 'id': '1', 'name': 'buy', 'arguments': {}}
    path.write_bytes(path.read_bytes() + json.dumps(call).encode() + b'\n')
    box.gate.seen.clear()
    async with box.running():
        with box.daemon.bus.subscribe(TurnInterrupted) as events:
            await box.advance(minutes=2)
            await box.empty()
            assert told(events, Event) == []
    assert box.records('closed')[:3] == [('a', 'answered'), ('b', 'unknown'), ('c', 'unknown')]
    assert len(box.gate.seen) == 1
    assert box.gate.seen[0].endswith(together('b', 'c'))


async def test_a_crash_is_told_once(tmp_path: Path) -> None:
    """A turn of three that a crash cut off is told once, with how many there were."""
    box = await finished(tmp_path)
    cut(box.folder / 'triggers.jsonl', first(box.folder / 'triggers.jsonl', 'closed'))
    cut(box.folder / 'sessions' / f'{SESSION}.jsonl', 0)
    path = box.folder / 'journal' / f'{SESSION}.jsonl'
    cut(path, first(path, 'message') + 1)
    seen: list[Event] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningDesk, 'publish', lambda _, event: seen.append(event))
        async with box.running():
            await until(lambda: not box.desk.queue.depth, 'each is run')
    told_of = [(e.trigger_id, e.triggers, e.cause) for e in seen if isinstance(e, TurnInterrupted)]
    assert told_of == [('a', 3, 'crash')]


async def test_waiting_over_a_restart(tmp_path: Path) -> None:
    """What waits when the daemon ends goes on waiting from when it came."""
    async with Box(tmp_path).running() as box:
        await box.send('a', 'b')
        await box.advance(seconds=40)
    async with box.running():
        await box.advance(seconds=19)
        assert box.gate.seen == []
        await box.advance(seconds=1)
        await box.empty()
    assert box.answered() == [['a', 'b']]


# -- who reads it ------------------------------------------------------------------------------------------------


async def test_the_files_say_it(tmp_path: Path) -> None:
    """Journal, story and index know each trigger of the turn; the index has its messages once."""
    box = await finished(tmp_path)
    turn = JournalFolder(box.folder / 'journal', 'main', box.clock.now).last_turn(SESSION)
    assert turn is not None
    assert turn.begun.trigger_ids == ('a', 'b', 'c')
    exchange = turn.exchange()
    assert exchange is not None
    assert exchange.to_json_dictionary() == box.exchanges()[0]
    for trigger_id in 'abc':
        story = tell_story(box.folder, trigger_id)
        assert story is not None
        assert story.place is not None
        assert (story.outcome, story.place.line) == ('answered', 1)
        (attempt,) = find_attempts(box.folder, story, lambda damage: pytest.fail(str(damage)))
        assert (attempt.number, attempt.backend) == (1, 'it')
    rows = rebuilt(tmp_path)
    assert len([row for row in rows['messages'] if 'tell me about b' in str(row)]) == 1
    assert len(rows['messages']) == 2


async def test_the_next_turn_after_it(tmp_path: Path) -> None:
    """A turn after one of several goes on in the same session, and a trigger that comes again is a duplicate."""
    box = await finished(tmp_path)
    async with box.running():
        receipt = await box.daemon.bus.send(Trigger('again', 'main', id='b'))
        assert receipt.status == 'duplicate'
        await box.send('d', priority='person')
        await box.empty()
    assert box.answered() == [['a', 'b', 'c'], ['d']]
