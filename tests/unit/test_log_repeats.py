"""A fault that repeats, on a clock that the test moves; and what the log makes of it."""

import io
import json
from typing import Any

import anyio
import pytest

from trading_agent import logs
from trading_agent.event_bus import EventBus
from trading_agent.events import DaemonHeartbeat, TurnStarted, WriteFailed
from trading_agent.log_repeats import MOST_FAULTS, WINDOW_SECONDS, Repeats
from trading_agent.logs import Log


class Time:
    """The time in seconds, as the test wants it."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def fault(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - a record's fields
    """Returns a record of a fault."""
    return {'event': 'write_failed', 'desk': 'main', 'path': '/ws/a', 'error': 'full', **fields}


def test_told_at_once_then_counted_then_told_again() -> None:
    """The first is told, what follows is counted, and a minute after it the last of them is told with their number."""
    time = Time()
    repeats = Repeats(time)
    assert repeats.take(fault(seq=1))
    for seq in range(2, 12):
        time.now += 5
        assert not repeats.take(fault(seq=seq))
    assert list(repeats.due()) == []
    time.now = 5 + WINDOW_SECONDS
    assert list(repeats.due()) == [fault(seq=11, repeats=10)]
    assert list(repeats.due()) == []


def test_minute_after_minute() -> None:
    """A fault that goes on is told once a minute; each time with how often it came since it was told."""
    time = Time()
    repeats = Repeats(time)
    written = []
    for second in range(601):
        time.now = 5.0 + second
        if repeats.take(fault(second=second)):
            written.append((second, 0))
        written += [(second, record['repeats']) for record in repeats.due()]
    assert written == [(0, 0), *((60 * minute, 60) for minute in range(1, 11))]


def test_one_that_ended() -> None:
    """A fault that came once is not told again, and when it comes back after its minute it is told at once."""
    time = Time()
    repeats = Repeats(time)
    assert repeats.take(fault())
    time.now += WINDOW_SECONDS
    assert list(repeats.due()) == []
    assert repeats.take(fault())
    assert not repeats.take(fault())
    time.now += WINDOW_SECONDS
    assert [record['repeats'] for record in repeats.due()] == [1]
    time.now += WINDOW_SECONDS
    assert list(repeats.due()) == []
    assert repeats.take(fault())


def test_at_the_end_of_the_log() -> None:
    """When the log ends, what was only counted is told."""
    repeats = Repeats(Time())
    repeats.take(fault(n=1))
    repeats.take(fault(n=2))
    repeats.take(fault(path='/ws/b'))
    assert list(repeats.due(everything=True)) == [fault(n=2, repeats=1)]


@pytest.mark.parametrize(
    'other',
    [
        {'desk': 'other'},
        {'event': 'model_call_failed'},
        {'backend': 'gpt'},
        {'component': 'chat'},
        {'source': 'inbox'},
        {'subscriber': 'log'},
        {'path': '/ws/b'},
        {'line': 7},
        {'reason': 'queue_full'},
        {'error_type': 'OSError'},
    ],
)
def test_faults_that_differ(other: dict[str, Any]) -> None:
    """Another desk's fault, or one of another kind or place, is told beside the first; other words make none."""
    repeats = Repeats(Time())
    assert repeats.take(fault())
    assert repeats.take(fault(**other))
    assert not repeats.take(fault(error='full again', seq=9))
    assert not repeats.take(fault(**other, error='full again'))


def test_memory_is_bounded() -> None:
    """Of very many different faults a thousand are gathered and the rest told as they come; a minute frees places."""
    time = Time()
    repeats = Repeats(time)
    for number in range(20 * MOST_FAULTS):
        assert repeats.take(fault(line=number))
    assert len(repeats._faults) == MOST_FAULTS
    assert not repeats.take(fault(line=0))
    assert repeats.take(fault(line=MOST_FAULTS + 1))
    time.now += WINDOW_SECONDS
    assert [record['line'] for record in repeats.due()] == [0]
    assert len(repeats._faults) == 1
    assert repeats.take(fault(line=MOST_FAULTS + 1))
    assert not repeats.take(fault(line=MOST_FAULTS + 1))


# -- in the log --------------------------------------------------------------------------------------------------


def failure(desk: str) -> WriteFailed:
    """Returns an event that is gathered."""
    return WriteFailed(desk=desk, path='/ws/a', operation='append', error='full', hint='free some space')


def lines(stream: io.BytesIO) -> list[dict[str, Any]]:
    """Returns what was written."""
    return [json.loads(line) for line in stream.getvalue().split(b'\n') if line]


async def test_the_log_gathers_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log a fault comes at once, again after its minute without another event, and the rest at the log's end."""
    monkeypatch.setattr(logs, 'REPEATS_SECONDS', 0.01)
    time, bus, stream = Time(), EventBus(), io.BytesIO()
    log = Log('run', stream=stream, journald=False)
    log._repeats = Repeats(time)

    async def written(count: int) -> None:
        with anyio.fail_after(30):
            while len(lines(stream)) < count:  # noqa: ASYNC110 - a stream tells nobody
                await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        await tasks.start(log.follow, bus)
        for _ in range(50):
            bus.publish(failure('main'))
            bus.publish(failure('other'))
        bus.publish(TurnStarted(desk='main', trigger_id='t', turn_id='t:1', attempt=1, source='api', wait_ms=0))
        await written(3)
        assert [(line['event'], line['desk']) for line in lines(stream)] == [
            ('write_failed', 'main'),
            ('write_failed', 'other'),
            ('turn_started', 'main'),
        ]
        assert all('repeats' not in line for line in lines(stream))
        time.now += WINDOW_SECONDS
        await written(5)
        assert [(line['desk'], line['repeats']) for line in lines(stream)[3:]] == [('main', 49), ('other', 49)]
        bus.publish(failure('other'))
        bus.publish(failure('main'))
        bus.publish(failure('main'))
        tasks.cancel_scope.cancel()
    assert [(line['desk'], line['repeats']) for line in lines(stream)[5:]] == [('main', 2), ('other', 1)]
    assert lines(stream)[3].items() >= {'level': 'error', 'error': 'full', 'hint': 'free some space'}.items()


async def test_what_is_no_fault_is_never_gathered() -> None:
    """Each event that is no repeating fault has a line of its own, also when two are equal."""
    bus, stream = EventBus(), io.BytesIO()
    log = Log('run', stream=stream, journald=False)
    event = TurnStarted(desk='main', trigger_id='t', turn_id='t:1', attempt=1, source='api', wait_ms=0)
    for _ in range(3):
        bus.publish(event)
    async with anyio.create_task_group() as tasks:
        await tasks.start(log.follow, bus)
        tasks.cancel_scope.cancel()
    assert [line['seq'] for line in lines(stream)] == [1, 2, 3]
    assert not DaemonHeartbeat.gathered
