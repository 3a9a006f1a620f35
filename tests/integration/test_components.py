"""Other people's code in the process: what it sees, how it is kept alive, and that nothing it does harms a desk."""

import asyncio
import inspect
import io
import os
import sys
import threading
import time
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import msgspec
import pytest
from daemon_fakes import Gate, answered, component, config_for, daemon_of, send, told, until

from trading_agent import config as config_module
from trading_agent.config import Config, Desk
from trading_agent.daemon import components as components_module
from trading_agent.daemon import restarts
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.loop_monitor import LoopMonitor
from trading_agent.daemon.plan import make_plan
from trading_agent.errors import ConfigurationError, TradingAgentError
from trading_agent.event_bus import EventBus
from trading_agent.events import (
    ComponentFailed,
    DaemonReady,
    DaemonStopping,
    DateChanged,
    DeskRestarted,
    Event,
    Level,
    LoopBlocked,
    SessionStarted,
    TurnFinished,
    TurnInterrupted,
)
from trading_agent.logs import Log, encode_record

BESIDE_SECONDS = 2.0
"""How long a desk answers beside a component that misbehaves."""

EVERY_SECONDS = 0.25
LATEST_SECONDS = 1.0
TRIES = 3
"""How often it is tried: the machine may be busy with something else for a while."""

# -- components, good and bad ------------------------------------------------------------------------------------


async def failing(bus: EventBus, options: dict[str, Any]) -> None:
    """Fails as often as it is told to, then goes on."""
    options['runs'].append(dict(options))
    options['scratch'] = 'its own'
    if len(options['runs']) <= options['failures']:
        raise TradingAgentError('it cannot reach the chat', 'look at the network')
    await anyio.sleep_forever()


async def returning(bus: EventBus, options: dict[str, Any]) -> None:
    """Has nothing more to do."""
    options['runs'].append('')


async def exiting(bus: EventBus, options: dict[str, Any]) -> None:
    """Takes the process for its own."""
    sys.exit('that is all')


async def in_a_group(bus: EventBus, options: dict[str, Any]) -> None:
    """Fails in a task of its own."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_deep_inside)
        await anyio.sleep_forever()


async def _deep_inside() -> None:
    raise LookupError('deep inside')


async def awaiting_what_was_cancelled(bus: EventBus, options: dict[str, Any]) -> None:
    """Waits for something that somebody has cancelled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancelling_itself(bus: EventBus, options: dict[str, Any]) -> None:
    """Cancels the task that it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.sleep_forever()


def not_asynchronous(bus: EventBus, options: dict[str, Any]) -> None:
    """Is no coroutine function."""


async def of_another_signature(bus: EventBus) -> None:
    """Does not take its options."""


async def patient(bus: EventBus, options: dict[str, Any]) -> None:
    """Takes a moment to end, and notes how many of it there are."""
    options['alive'].append(options.get('number', 0))
    options['most'].append(len(options['alive']))
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
        options['alive'].remove(options.get('number', 0))


async def stubborn(bus: EventBus, options: dict[str, Any]) -> None:
    """Does not let itself be cancelled until it is let go."""
    options['runs'].append('begins')
    while not options['let_go']:
        try:
            await anyio.sleep(0.01)
        except anyio.get_cancelled_exc_class():  # the fault that is tried: it is swallowed
            continue
    options['runs'].append('ends')


async def not_reading(bus: EventBus, options: dict[str, Any]) -> None:
    """Subscribes, reads a little, and never again."""
    with bus.subscribe(since='oldest', name='sleepy') as events:
        await events.batch(1)
        await anyio.sleep_forever()


class Odd(DateChanged, frozen=True, kw_only=True):
    """An event of a component's own, with whatever it likes in it; not of `Event`, for others here list those."""

    desks: int = 0
    text: str = 'x' * 50
    anything: Any = None


class Loud(Odd, frozen=True, kw_only=True):
    """An event of a level that there is not."""

    level: ClassVar[Level] = 'loud'  # type: ignore[assignment]


class Gathered(Odd, frozen=True, kw_only=True):
    """A fault that repeats, with a reason that nobody can compare."""

    gathered: ClassVar[bool] = True

    reason: Any = None


class Untagged(Odd, frozen=True, kw_only=True, tag=False):
    """An event without a name."""


def nested(depth: int) -> list[Any]:
    """Returns lists within lists."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


async def flooding(bus: EventBus, options: dict[str, Any]) -> None:
    """Publishes as fast as it can: its own events, some of which nobody can write, and those of others."""
    number = 0
    while True:
        for _ in range(options['burst']):
            number += 1
            options['published'][0] = number
            bus.publish(Odd(desk='d0', anything=object() if number % 1000 == 0 else {'n': [number] * 5}))
            bus.publish(ComponentFailed(component='flood', error_type='Flood', error=f'number {number}'))
        await anyio.lowlevel.checkpoint()


async def hogging_threads(bus: EventBus, options: dict[str, Any]) -> None:
    """Takes every thread that anyio lends to those who bring no limiter of their own."""
    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(lambda: anyio.to_thread.run_sync(options['wait'], abandon_on_cancel=True))


async def blocking(bus: EventBus, options: dict[str, Any]) -> None:
    """Stands in everybody's way once, and looks at the log meanwhile."""
    await anyio.sleep(0.3)
    log, deadline = Path(options['log']), time.monotonic() + 30
    while b'"loop_blocked"' not in log.read_bytes() and time.monotonic() < deadline:  # noqa: ASYNC240 - the fault that is tried
        time.sleep(0.05)  # noqa: ASYNC251 - likewise
    options['log_then'].append(log.read_bytes())  # noqa: ASYNC240 - likewise
    await anyio.sleep_forever()


HERE = 'test_components:'


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets what failed be started again at once."""
    monkeypatch.setattr(restarts, 'LONGEST_DELAY_SECONDS', 0.01)


# -- what they see -----------------------------------------------------------------------------------------------


async def test_they_see_everything(tmp_path: Path) -> None:
    """A component that subscribes as it starts sees the start of every desk, the stop, and what ends after it."""
    seen: list[Any] = []
    gate = Gate()
    desks = [Desk(name=f'd{n}', backends=['held']) for n in range(3)]
    config = config_for(
        tmp_path, desks=desks, backends={'held': gate.backend()}, components=[component('n', NOTING, seen=seen)]
    )
    async with daemon_of(config) as daemon:
        await send(daemon, 'd1', 'in the drain')
        await until(lambda: gate.seen, 'the turn runs')
        daemon.stop('the test')
        gate.open()
    assert (seen[0], seen[-1]) == ('begins', 'ends')
    started = [event for event in seen if isinstance(event, SessionStarted)]
    assert sorted(str(event.desk) for event in started) == ['d0', 'd1', 'd2']
    kinds = [type(event) for event in seen]
    assert kinds.index(DaemonReady) < kinds.index(DaemonStopping) < kinds.index(TurnFinished)
    with daemon.bus.subscribe(since='oldest') as events:
        assert [event for event in seen if isinstance(event, Event)] == told(events, Event)


NOTING = 'daemon_fakes:noting'


async def test_their_options(tmp_path: Path, quick: None) -> None:
    """Options reach a component as they stand in the file, at each of its starts, whatever it did to them before."""
    runs: list[Any] = []
    text = """
        [[components]]
        name = "nested"
        entry = "test_components:failing"
        [components.options]
        failures = 2
        at = 2026-03-10T09:15:00+05:30
        list = [1, 2.5, "three", { four = 4 }]
        token_env = "TOKEN"
        [components.options.table]
        deep = { deeper = true }
    """
    config = config_module.parse(text, tmp_path / 'config.toml')
    configured = config.components[0].options
    config = msgspec.structs.replace(
        config,
        workspace=tmp_path / 'ws',
        components=[msgspec.structs.replace(config.components[0], options={**configured, 'runs': runs})],
    )
    async with daemon_of(config):
        await until(lambda: len(runs) == 3, 'it was started three times')
    written = tomllib.loads(text)['components'][0]['options']
    assert [{**options, 'runs': None} for options in runs] == [{**written, 'runs': None}] * 3
    assert runs[0]['at'].utcoffset() is not None


# -- how they are kept alive -------------------------------------------------------------------------------------


async def test_one_that_fails_again_and_again(tmp_path: Path, quick: None) -> None:
    """One that raises is started again five times, each told; then it stays down, until a reload lets it try again."""
    runs: list[Any] = []
    config = config_for(tmp_path, components=[component('chat', f'{HERE}failing', runs=runs, failures=7)])
    async with daemon_of(config) as daemon:
        with daemon.bus.subscribe(since='oldest') as events:
            await until(lambda: len(runs) == 6 and daemon.configuration._components._rooms['chat'].down, 'it is down')
            failures = told(events, ComponentFailed)
            assert len(failures) == 6
            assert {(e.component, e.error_type) for e in failures} == {('chat', 'TradingAgentError')}
            assert all(e.error.startswith('it cannot reach the chat (in failing, ') for e in failures)
            assert [e.hint for e in failures[:5]] == ['look at the network; it is started again'] * 5
            assert failures[5].hint.startswith('look at the network; it stays down until')
            await answered(daemon, 'main', 'beside')
            assert len(runs) == 6
            changes = await daemon.configuration.apply(config)
            assert changes.changed == []
            await until(lambda: len(runs) == 8, 'it was started once more, failed, and was started again')
            assert [e.hint for e in told(events, ComponentFailed)] == ['look at the network; it is started again']
            await answered(daemon, 'main', 'after')
            assert told(events, DeskRestarted) == []
            assert len(runs) == 8


async def test_one_that_returns(tmp_path: Path) -> None:
    """One that returns has done its work: nothing is told, and no reload starts it again."""
    runs: list[Any] = []
    seen: list[Any] = []
    both = [component('once', f'{HERE}returning', runs=runs), component('beside', NOTING, seen=seen)]
    config = config_for(tmp_path, components=both)
    async with daemon_of(config) as daemon:
        await daemon.configuration.apply(config)
        await answered(daemon, 'main', 'one')
        assert len(runs) == 1
        assert seen.count('begins') == 1
        assert not [event for event in seen if isinstance(event, ComponentFailed)]


@pytest.mark.parametrize(
    'case',
    [
        ('exiting', 'SystemExit', 'that is all (in exiting', 6),
        ('in_a_group', 'LookupError', 'deep inside (in _deep_inside', 6),
        ('awaiting_what_was_cancelled', 'ComponentCancelled', 'it was cancelled by something inside it', 6),
        ('cancelling_itself', 'ComponentCancelled', 'it was cancelled by something inside it', 1),
        ('not_asynchronous', 'TypeError', "object NoneType can't be used in 'await' expression", 6),
        ('of_another_signature', 'TypeError', 'takes 1 positional argument', 6),
    ],
)
async def test_odd_ends(tmp_path: Path, quick: None, case: tuple[str, str, str, int]) -> None:
    """However a component ends, it is told, and neither another component nor a desk nor the program ends with it."""
    entry, error_type, error, times = case
    seen: list[Any] = []
    both = [component('beside', NOTING, seen=seen), component('odd', f'{HERE}{entry}')]
    async with daemon_of(config_for(tmp_path, components=both)) as daemon:
        failures: list[ComponentFailed] = []

        def failed() -> list[ComponentFailed]:
            failures[:] = [event for event in seen if isinstance(event, ComponentFailed)]
            return failures

        await until(lambda: len(failed()) == times, 'it failed as often as it may')
        assert 'stays down' in failures[-1].hint
        assert {failure.component for failure in failures} == {'odd'}
        assert {failure.error_type for failure in failures} == {error_type}
        assert all(error in failure.error for failure in failures)
        await answered(daemon, 'main', 'beside')
        assert len(failed()) == times
        assert 'ends' not in seen
    assert seen[-1] == 'ends'


async def test_changes_touch_only_what_changed(tmp_path: Path) -> None:
    """Changed options restart that component alone; a removed one ends; the others and a running turn go on."""
    alive: dict[str, list[int]] = {name: [] for name in 'abc'}
    most: list[int] = []
    gate = Gate()

    def config(**numbers: int) -> Config:
        return config_for(
            tmp_path,
            desks=[Desk(name='main', backends=['held'])],
            backends={'held': gate.backend()},
            components=[
                component(name, f'{HERE}patient', alive=alive[name], most=most, number=number)
                for name, number in numbers.items()
            ],
        )

    async with daemon_of(config(a=1, b=2)) as daemon:
        with daemon.bus.subscribe() as events:
            await send(daemon, 'main', 'running')
            await until(lambda: gate.seen and alive['b'], 'all run')
            changes = await daemon.configuration.apply(config(a=1, b=3, c=4))
            assert (changes.added, changes.changed, changes.removed) == (['component c'], ['component b'], [])
            await until(lambda: alive == {'a': [1], 'b': [3], 'c': [4]}, 'b was replaced, c began')
            changes = await daemon.configuration.apply(config(a=1, c=4))
            assert changes.removed == ['component b']
            await until(lambda: alive == {'a': [1], 'b': [], 'c': [4]}, 'b has ended')
            assert len(most) == 4  # a, b, b and c began, and nothing else
            # Changed and changed back without a pause, and more quickly than it can end: never two at once.
            for number in range(10):
                await daemon.configuration.apply(config(a=1, b=number))
                await daemon.configuration.apply(config(a=1))
            await daemon.configuration.apply(config(a=1, b=10))
            await until(lambda: alive == {'a': [1], 'b': [10], 'c': []}, 'the last one runs')
            assert set(most) == {1}
            gate.open()
            await until(lambda: told(events, TurnFinished), 'the turn is answered')
            assert told(events, TurnInterrupted) == []
    assert alive == {'a': [], 'b': [], 'c': []}


async def test_one_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that swallows its cancellation is named, and the next of its name begins only when it has ended."""
    monkeypatch.setattr(components_module, 'CANCEL_GRACE_SECONDS', 0.1)
    runs: list[str] = []
    let_go: list[bool] = []
    first = component('chat', f'{HERE}stubborn', runs=runs, let_go=let_go)
    second = component('chat', f'{HERE}stubborn', runs=runs, let_go=let_go, more=1)
    async with daemon_of(config_for(tmp_path, components=[first])) as daemon:
        with daemon.bus.subscribe() as events:
            await until(lambda: runs, 'it runs')
            await daemon.configuration.apply(config_for(tmp_path, components=[second]))
            (failure,) = await until(lambda: told(events, ComponentFailed), 'it is named')
            assert (failure.component, failure.error_type) == ('chat', 'ComponentStuck')
            assert 'only a restart of the daemon' in failure.hint
            await answered(daemon, 'main', 'beside')
            assert runs == ['begins']
            let_go.append(True)
            await until(lambda: runs == ['begins', 'ends', 'begins', 'ends'], 'the next one ran')


async def test_one_that_holds_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the stop, too, it is told who does not end; the desks have ended by then, and the others of its kind."""
    monkeypatch.setattr(components_module, 'CANCEL_GRACE_SECONDS', 0.1)
    runs: list[str] = []
    let_go: list[bool] = []
    seen: list[Any] = []
    both = [component('chat', f'{HERE}stubborn', runs=runs, let_go=let_go), component('beside', NOTING, seen=seen)]
    daemon = daemon_of(config_for(tmp_path, components=both))
    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def live() -> None:
            async with daemon:
                await until(lambda: runs, 'it runs')
            ended.set()

        with daemon.bus.subscribe(ComponentFailed) as events:
            tasks.start_soon(live)
            (failure,) = await until(lambda: told(events, ComponentFailed), 'it is named')
            assert failure.error_type == 'ComponentStuck'
        assert not daemon.supervisor.desks['main'].status().turn
        assert seen[-1] == 'ends'
        assert not ended.is_set()
        let_go.append(True)
        with anyio.fail_after(30):
            await ended.wait()


# -- what cannot be used -----------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that cannot be imported."""
    folder = tmp_path / 'modules'
    folder.mkdir()
    (folder / 'raises_on_import.py').write_text("raise RuntimeError('it wants a database')\n")
    (folder / 'exits_on_import.py').write_text('import sys\nsys.exit(3)\n')
    (folder / 'no_python.py').write_text('async def\n')
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(
    ('entry', 'what'),
    [
        ('there_is_none:run', 'No module named'),
        ('raises_on_import:run', 'it wants a database'),
        ('exits_on_import:run', 'ends the program when it is imported'),
        ('no_python:run', 'SyntaxError'),
        ('daemon_fakes:there_is_none', "has no attribute 'there_is_none'"),
        ('daemon_fakes:MORNING', 'cannot be called'),
    ],
)
async def test_an_entry_that_cannot_be_used(tmp_path: Path, modules: Path, entry: str, what: str) -> None:
    """A component that cannot be imported or called is a mistake of the configuration that names its key."""
    config = config_for(tmp_path / 'ws', components=[component('chat', entry)])
    with pytest.raises(ConfigurationError) as caught:
        await daemon_of(config).__aenter__()
    (problem,) = caught.value.problems
    assert problem.where.endswith(': components.chat.entry')
    assert what in problem.what
    assert problem.hint
    assert not (tmp_path / 'ws').exists()
    async with daemon_of(config_for(tmp_path / 'ws')) as daemon:
        before = daemon.supervisor.status()
        with pytest.raises(ConfigurationError, match=r'components\.chat\.entry'):
            await daemon.configuration.apply(config)
        assert daemon.supervisor.status() == before
        assert daemon.config.components == []


def test_a_package_that_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be imported can be once it is there, without a restart."""
    folder = tmp_path / 'site'
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    config = config_for(tmp_path / 'ws', components=[component('chat', 'came_later:run')])
    with pytest.raises(ConfigurationError):
        make_plan(config)
    stamp = folder.stat()
    (folder / 'came_later.py').write_text('async def run(bus, options):\n    pass\n')
    os.utime(folder, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as quick as a script that installs and reloads
    assert make_plan(config).components['chat'][1].__name__ == 'run'


# -- what they do to a desk --------------------------------------------------------------------------------------


@asynccontextmanager
async def logged(config: Config, stream: Any) -> AsyncIterator[Daemon]:  # noqa: ANN401 - a binary file
    """Runs a daemon with its log and its monitor, as `trading-agent run` does."""
    daemon = daemon_of(config)
    log = Log(daemon.run_id, stream=stream, journald=False)
    daemon.on_config = log.configure
    async with anyio.create_task_group() as tasks:
        await tasks.start(log.follow, daemon.bus)
        await tasks.start(LoopMonitor(log.tell_now, daemon.bus.publish).run)
        async with daemon:
            yield daemon
        tasks.cancel_scope.cancel()


async def latest_answer(daemon: Daemon, desks: list[str], again: int = 0) -> tuple[int, float]:
    """Lets each desk answer four triggers a second for some seconds; returns how many, and how long one took."""
    sent: dict[str, float] = {}
    took: dict[str, float] = {}

    async def note() -> None:
        with daemon.bus.subscribe(TurnFinished) as events:
            async for event in events:
                if isinstance(event, TurnFinished) and event.trigger_id in sent:
                    took[event.trigger_id] = time.monotonic() - sent[event.trigger_id]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note)
        began = time.monotonic()
        for number in range(round(BESIDE_SECONDS / EVERY_SECONDS)):
            await anyio.sleep(max(0.0, began + number * EVERY_SECONDS - time.monotonic()))
            for desk in desks:
                trigger_id = f'{desk}-{again}-{number}' if again else f'{desk}-{number}'
                sent[trigger_id] = time.monotonic()
                await send(daemon, desk, trigger_id)
        await until(lambda: len(took) == len(sent), 'all are answered')
        tasks.cancel_scope.cancel()
    return len(took), max(took.values())


@pytest.mark.parametrize('kind', ['not_reading', 'flooding one by one', 'flooding in bursts', 'hogging_threads'])
async def test_misbehaviour_beside_a_desk(tmp_path: Path, kind: str) -> None:
    """Beside a component that stops reading, floods the bus or takes all threads no turn is late by a second."""
    published = [0]
    entry = kind.split(' ', maxsplit=1)[0]
    burst = 5 if kind == 'flooding in bursts' else 1
    options: dict[str, Any] = {}
    ended = threading.Event()
    if entry == 'flooding':
        options = {'published': published, 'burst': burst}
    if entry == 'hogging_threads':
        options = {'wait': ended.wait}
    stream = io.BytesIO()
    desks = [Desk(name='d0'), Desk(name='d1')]
    config = config_for(tmp_path, desks=desks, components=[component('odd', f'{HERE}{entry}', **options)])
    try:
        async with logged(config, stream) as daemon:
            for again in range(TRIES):
                count, latest = await latest_answer(daemon, ['d0', 'd1'], again)
                if latest < LATEST_SECONDS:
                    break
            if entry == 'flooding':
                assert published[0] > 10_000
            else:
                await until(lambda: b'"turn_id":"d1-1:1"' in stream.getvalue(), 'the log goes on meanwhile')
    finally:
        ended.set()
    assert count == 2 * BESIDE_SECONDS / EVERY_SECONDS
    assert latest < LATEST_SECONDS
    lines = [msgspec.json.decode(line) for line in stream.getvalue().split(b'\n') if line]
    names = [line['event'] for line in lines]
    assert 'loop_blocked' not in names
    assert 'daemon_stopping' in names
    if entry == 'flooding':
        # What nobody can write is named in its place, and the fault that repeats is told and then counted.
        assert any('Odd cannot be written: TypeError' in line.get('error', '') for line in lines)
        failures = [line for line in lines if line['event'] == 'component_failed']
        assert len(failures) == 2
        assert failures[1]['repeats'] > 1


ODD_EVENTS = {
    'a long text': Odd(text='\U0001f600"\\' * 100_000),
    'a long list': Odd(anything=['x' * 50] * 100_000),
    'many fields': Odd(anything={f'field {n}': n for n in range(100_000)}),
    'a long text inside': Odd(anything={'a': [{'b': 'x' * 1_000_000}]}),
    'long texts inside': Odd(anything=['x' * 1_000_000] * 3),
    'an object': Odd(anything=object()),
    'no number': Odd(anything=float('nan')),
    'nested': Odd(anything=nested(100_000)),
    'half a character': Odd(text='\ud800'),
    'no such level': Loud(),
    'not to be compared': Gathered(reason=['a', 'list']),
    'no name': Untagged(),
}


@pytest.mark.parametrize('event', ODD_EVENTS.values(), ids=ODD_EVENTS)
async def test_events_of_their_own(tmp_path: Path, event: Event) -> None:
    """Whatever an event of a component's own holds, it has one line of JSON of under 16 KiB, and the log goes on."""
    path = tmp_path / 'log'
    with path.open('wb') as stream:
        async with logged(config_for(tmp_path / 'ws'), stream) as daemon:
            await until(lambda: b'"daemon_ready"' in path.read_bytes(), 'it is logged')
            before = path.read_bytes()
            daemon.bus.publish(event)
            await answered(daemon, 'main', 'after')
            await until(lambda: b'"turn_finished"' in path.read_bytes(), 'it is logged')
            written = path.read_bytes().removeprefix(before).split(b'\n')
    records = [msgspec.json.decode(line) for line in written if line]
    assert [record['event'] for record in records[1:5]] == [
        'trigger_accepted',
        'turn_started',
        'trigger_closed',
        'turn_finished',
    ]
    assert records[0]['event'] in {'odd', 'log'}
    assert max(map(len, written)) < 16 << 10


def test_a_line_of_very_many_fields() -> None:
    """A record of more fields than a line can hold is cut down to what says when, how bad and what it was."""
    head = {'timestamp': '2026-03-10T04:30:00.000Z', 'level': 'error', 'event': 'odd' * 1000, 'run_id': 'r'}
    line = encode_record(head | {f'field_{number}': number for number in range(10_000)})
    assert len(line) < 1000
    record = msgspec.json.decode(line)
    assert record['error'] == '10004 fields are too many for a line'
    assert (record['timestamp'], record['level']) == (head['timestamp'], 'error')
    assert record['event'].startswith('oddodd')


async def test_one_that_blocks_the_loop(tmp_path: Path) -> None:
    """One that blocks the loop is named with its task, function and line, once, in the log while it still does."""
    path = tmp_path / 'log'
    log_then: list[bytes] = []
    options = {'log': str(path), 'log_then': log_then}
    config = config_for(tmp_path / 'ws', components=[component('blocker', f'{HERE}blocking', **options)])
    with path.open('wb') as stream:
        async with logged(config, stream) as daemon:
            with daemon.bus.subscribe(LoopBlocked) as events:
                (event,) = await until(lambda: told(events, LoopBlocked), 'it is told on the bus')
                await until(lambda: log_then, 'it looked at the log')
                await answered(daemon, 'main', 'after')
                assert told(events, LoopBlocked) == []
    (line,) = [line for line in path.read_bytes().split(b'\n') if b'"loop_blocked"' in line]
    assert line in log_then[0]
    record = msgspec.json.decode(line)
    assert record['level'] == 'error'
    assert record['task'] == event.task == 'component blocker'
    lines, first = inspect.getsourcelines(blocking)
    its_lines = range(first, first + len(lines))
    assert any(f' blocking ({__file__}:{number})' in record['error'] for number in its_lines)
    assert record['blocked_ms'] >= 1000
