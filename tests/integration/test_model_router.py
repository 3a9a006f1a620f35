"""The router over a real store: who answers, what is kept of it, and what a failure leaves behind."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from keeper_fakes import MONDAY, TUESDAY, InlineDisk, around, failing, spare_the_disk, until
from router_fakes import Desk, Scripted, says

from trading_agent import files
from trading_agent.errors import BackendError, NoBackend, StorageError, TurnRefused
from trading_agent.events import BackendDown, BackendUp, TurnOutput, WriteFailed
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.session_state import RouteState
from trading_agent.messages import Usage
from trading_agent.routing import model_call, model_router
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent, UsageCounted

SCHEMA = {
    'type': 'object',
    'properties': {'summary': {'type': 'string', 'minLength': 1}, 'score': {'type': 'integer'}},
    'required': ['summary', 'score'],
}


MISCOUNTED = UsageCounted(input_tokens='many')  # type: ignore[arg-type] # what a plug-in may yield


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_the_disk(monkeypatch)


# -- who answers -----------------------------------------------------------------------------------------------


async def test_the_first_healthy_backend_answers(tmp_path: Path) -> None:
    """The preferred backend answers, and no other one is asked; the exchange says everything that is known of it."""
    second = says('no')
    desk = Desk(tmp_path, says('yes'), second)
    exchange = await desk.run('buy?')
    assert exchange == Exchange(
        'buy?', 'yes', 'claude', '2026-10-19T03:45:00.000000Z', 't1', '2026-10-19T03:45:00.000000Z'
    )
    assert desk.store.exchanges('2026-10-19-1') == [exchange] == list(desk.router.exchanges)
    assert second.turns == []
    assert desk.events == []
    assert desk.router.backends == ['claude', 'gpt']


@pytest.mark.parametrize(
    'error',
    [
        BackendError('overloaded', 'wait'),
        ValueError('bad'),
        RuntimeError(),
        OSError(errno.ECONNREFUSED, 'refused'),
        TimeoutError(),
        RecursionError('deep'),
        NoBackend({}),
        StorageError('read', Path('x'), OSError(errno.EIO, 'io')),
        asyncio.CancelledError(),
        StopAsyncIteration(),
        ExceptionGroup('two', [ValueError('a'), KeyError('b')]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize('after_a_piece', [False, True])
async def test_whatever_a_runner_raises_the_next_one_is_asked(
    tmp_path: Path, error: BaseException, *, after_a_piece: bool
) -> None:
    """Any failure of a runner is that backend's failure, told with its purpose; the next in order answers."""
    pieces = [TextPiece('half an ')] if after_a_piece else []
    first = Scripted(*pieces, error)
    desk = Desk(tmp_path, first, says('yes'), says('no'))
    exchange = await desk.run()
    assert (exchange.answer, exchange.backend_name) == ('yes', 'gpt')
    assert first.closed == 1
    failure = desk.failures()[0]
    assert len(desk.failures()) == 1
    assert (failure.backend, failure.purpose, failure.trigger_id) == ('claude', 'turn', 't1')
    assert (failure.desk, failure.session_id, failure.trading_date) == ('main', '2026-10-19-1', MONDAY)
    assert failure.error
    assert failure.error_type
    assert failure.hint == getattr(error, 'hint', '')
    assert desk.router.failing == {'claude'}
    assert desk.log() == ['yes']
    assert desk.router.call is None


async def test_a_backend_that_answers_again_is_healthy_again(tmp_path: Path) -> None:
    """The preferred backend is asked first again, and no longer counts as failing once it has answered."""
    first = Scripted(ValueError('bad'))
    desk = Desk(tmp_path, first, says('yes'))
    await desk.run()
    assert desk.router.failing == {'claude'}
    first.script = [TurnAnswered('back')]
    desk.cool_down()
    assert (await desk.run()).backend_name == 'claude'
    assert desk.router.failing == set()
    assert [event.backend for event in desk.events if isinstance(event, BackendDown | BackendUp)] == ['claude'] * 2


async def test_when_all_fail_each_failure_is_named(tmp_path: Path) -> None:
    """NoBackend says of every backend what went wrong, and the session is as it was."""
    desk = Desk(tmp_path, Scripted(ValueError('bad key')), Scripted(RuntimeError()))
    with pytest.raises(NoBackend) as failure:
        await desk.run()
    assert failure.value.failures == {'claude': 'bad key', 'gpt': 'RuntimeError'}
    assert 'claude: bad key' in str(failure.value)
    assert desk.log() == []
    assert len(desk.failures()) == 2


async def test_without_backends_nobody_answers(tmp_path: Path) -> None:
    """A desk without any backend says so."""
    with pytest.raises(NoBackend, match='none is configured'):
        await Desk(tmp_path).run()


async def test_a_refused_turn_fails_at_once(tmp_path: Path) -> None:
    """What the request itself is refused for is not tried elsewhere."""
    second = says('no')
    desk = Desk(tmp_path, Scripted(TurnRefused('too long', 'shorten it')), second)
    with pytest.raises(TurnRefused, match='too long'):
        await desk.run()
    assert second.turns == []
    assert desk.log() == []
    assert (desk.failures()[0].error_type, desk.failures()[0].hint) == ('TurnRefused', 'shorten it')
    assert desk.router.failing == set(), 'the backend is well'


@pytest.mark.parametrize('after_a_piece', [False, True])
async def test_a_backend_that_takes_too_long(tmp_path: Path, *, after_a_piece: bool) -> None:
    """After its time the next backend is asked, the runner is closed, and its failure says how long it had."""
    pieces = [TextPiece('well, ')] if after_a_piece else []
    first = Scripted(*pieces, anyio.sleep_forever)
    desk = Desk(tmp_path, first, says('yes'), turn_seconds=0.03)
    with anyio.fail_after(30):
        exchange = await desk.run()
    assert exchange.backend_name == 'gpt'
    assert first.closed == 1
    assert desk.failures()[0].error == 'no answer within 0.03 s'
    assert desk.failures()[0].duration_ms >= 30


async def test_a_runner_that_will_not_be_closed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that hangs when it is cut off holds up the desk for a while, not for ever."""
    monkeypatch.setattr(model_call, 'CLOSE_SECONDS', 0.03)

    class Unclosable:
        async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
            try:
                yield MISCOUNTED
            finally:
                await anyio.sleep_forever()

    desk = Desk(tmp_path, Unclosable(), says('yes'))
    with anyio.fail_after(30):
        assert (await desk.run()).backend_name == 'gpt'


async def test_a_runner_is_closed_at_once(tmp_path: Path) -> None:
    """A runner whose event cannot be used is closed before the next backend is asked, not when memory is tidied."""
    first = Scripted(MISCOUNTED, TurnAnswered('never'))
    closed: list[int] = []

    async def look() -> None:
        closed.append(first.closed)

    desk = Desk(tmp_path, first, Scripted(look, TurnAnswered('yes')))
    assert (await desk.run()).answer == 'yes'
    assert closed == [1]
    assert desk.failures()[0].error_type == 'TypeError'


BAD_ENDS = [
    pytest.param([], 'without an answer', id='nothing'),
    pytest.param([TextPiece('Buy')], 'without an answer', id='pieces only'),
    pytest.param([UsageCounted(1, 1)], 'without an answer', id='usage only'),
    pytest.param([TurnAnswered(None)], 'no text', id='no text'),  # type: ignore[arg-type]
    pytest.param([TurnAnswered('x', {'key': b'bytes'})], 'runner_state', id='bytes to keep'),
    pytest.param([TurnAnswered('x', ['token'])], 'runner_state', id='a list to keep'),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(('script', 'error'), BAD_ENDS)
async def test_a_runner_that_breaks_its_contract(tmp_path: Path, script: list[TurnEvent], error: str) -> None:
    """A run that ends without a usable answer is a failure: nothing that cannot be read again reaches the files."""
    desk = Desk(tmp_path, Scripted(*script), says('yes'))
    assert (await desk.run()).backend_name == 'gpt'
    assert error in desk.failures()[0].error
    assert desk.log() == ['yes']


@pytest.mark.parametrize('run', [lambda _: None, lambda _: 7, lambda: None], ids=['none', 'a number', 'no argument'])
async def test_a_plug_in_that_is_no_runner(tmp_path: Path, run: Callable[..., object]) -> None:
    """What is no asynchronous iterator, or cannot be called with a turn, is a failing backend."""

    class Odd:
        def __init__(self) -> None:
            self.run: Any = run

    desk = Desk(tmp_path, Odd(), says('yes'))
    assert (await desk.run()).backend_name == 'gpt'
    assert desk.failures()[0].error_type in ('TypeError', 'AttributeError')


async def test_a_runner_without_a_generator(tmp_path: Path) -> None:
    """Any asynchronous iterator will do."""

    class Plain:
        def __init__(self) -> None:
            self.left: list[TurnEvent] = [TextPiece('a'), TurnAnswered('a')]

        def run(self, turn: Turn) -> 'Plain':
            return self

        def __aiter__(self) -> 'Plain':
            return self

        async def __anext__(self) -> TurnEvent:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    assert (await Desk(tmp_path, Plain()).run()).answer == 'a'


async def test_pieces_are_told_as_they_come(tmp_path: Path) -> None:
    """Each piece is told with its trigger, attempt and backend before the answer is there; other events are not."""
    seen: list[int] = []

    async def look() -> None:
        with anyio.fail_after(30):
            while not desk.events:  # noqa: ASYNC110 - any condition
                await anyio.sleep(0.005)
        seen.append(len(desk.events))

    desk = Desk(
        tmp_path, Scripted(TextPiece('Buy '), look, UsageCounted(1, 2), TextPiece('now'), TurnAnswered('Buy now'))
    )
    await desk.run(attempt=3)
    assert seen == [1]
    pieces = [event for event in desk.events if isinstance(event, TurnOutput)]
    assert [(event.text, event.trigger_id, event.turn_id, event.backend) for event in pieces] == [
        ('Buy ', 't1', 't1:3', 'claude'),
        ('now', 't1', 't1:3', 'claude'),
    ]
    assert desk.events == pieces


async def test_usage_is_summed(tmp_path: Path) -> None:
    """Every count of the run that answered is added up, and one that counted nothing has none."""
    desk = Desk(
        tmp_path,
        Scripted(UsageCounted(9, 9), ValueError('bad')),
        Scripted(UsageCounted(10, 2), UsageCounted(input_tokens=5), UsageCounted(0, 3), TurnAnswered('x')),
    )
    assert (await desk.run()).usage == {'input_tokens': 15, 'output_tokens': 5}
    assert desk.store.exchanges('2026-10-19-1')[0].usage == {'input_tokens': 15, 'output_tokens': 5}
    assert (await Desk(tmp_path / 'other', says('x')).run()).usage is None


async def test_what_a_turn_is_given(tmp_path: Path) -> None:
    """A runner is told the desk, the session, the text, the exchanges so far and Memory.md as it is now."""
    (tmp_path / 'Memory.md').write_text('- a rule\n')
    runner = says('yes')
    desk = Desk(tmp_path, runner, memory=MemoryFile(tmp_path))
    await desk.run('one')
    (tmp_path / 'Memory.md').write_text('- another rule\n')
    await desk.run('two')
    first, second = runner.turns
    assert (first.desk, first.session_id, first.trading_date) == ('main', '2026-10-19-1', MONDAY)
    assert (first.text, first.memory, first.schema) == ('one', '- a rule\n', None)
    assert (second.text, second.memory) == ('two', '- another rule\n')
    assert [exchange.trigger_text for exchange in second.exchanges][:1] == ['one']


# -- what is kept ----------------------------------------------------------------------------------------------


async def test_each_backend_gets_back_what_it_kept(tmp_path: Path) -> None:
    """How far a backend has followed and its runner's state are saved for each, and given back after a restart."""
    first, second = says('a', {'resume': 'c1'}), says('b', {'resume': 'g1'})
    desk = Desk(tmp_path, first, second)
    await desk.run()
    first.script = [ValueError('bad')]
    await desk.run()
    state = desk.store.load_state()
    assert state is not None
    assert state.routes == {'claude': RouteState(1, {'resume': 'c1'}), 'gpt': RouteState(2, {'resume': 'g1'})}

    first.script = [TurnAnswered('c')]
    again = Desk(tmp_path, first, second)
    assert await again.router.restore_session()
    await again.run()
    assert (first.turns[-1].runner_state, first.turns[-1].exchanges_seen) == ({'resume': 'c1'}, 1)
    assert [len(turn.exchanges) for turn in first.turns][-1] >= 2
    state = again.store.load_state()
    assert state is not None
    assert state.routes['claude'] == RouteState(3, None), 'a runner that returns nothing keeps nothing'
    assert state.routes['gpt'] == RouteState(2, {'resume': 'g1'})


async def test_a_reset_drops_what_backends_kept(tmp_path: Path) -> None:
    """A new session begins without exchanges and with no backend's state, on disk too."""
    runner = says('a', {'resume': 'c1'})
    desk = Desk(tmp_path, runner)
    await desk.run()
    await desk.router.reset()
    assert desk.router.session_id == '2026-10-19-2'
    assert list(desk.router.exchanges) == []
    state = desk.store.load_state()
    assert state is not None
    assert (state.session_id, state.routes) == ('2026-10-19-2', {})
    await desk.run()
    assert (runner.turns[-1].runner_state, runner.turns[-1].exchanges_seen) == (None, 0)
    assert desk.log() == ['a']


async def test_a_state_that_is_ahead_of_its_log(tmp_path: Path) -> None:
    """Where lines of the log were lost, no backend is taken to know more than there is."""
    runner = says('a', {'resume': 'c1'})
    desk = Desk(tmp_path, runner)
    for _ in range(3):
        await desk.run()
    log = desk.store.log_path('2026-10-19-1')
    log.write_bytes(log.read_bytes().split(b'\n')[0] + b'\n')
    again = Desk(tmp_path, runner)
    await again.run()
    assert runner.turns[-1].exchanges_seen == 1


async def test_restoring_seals_a_torn_log(tmp_path: Path) -> None:
    """A line that a crash tore does not swallow the next exchange."""
    desk = Desk(tmp_path, says('a'))
    await desk.run()
    with desk.store.log_path('2026-10-19-1').open('ab') as log:
        log.write(b'{"trigger_text": "half')
    again = Desk(tmp_path, says('b'))
    assert await again.router.restore_session()
    await again.run()
    assert again.log() == ['a', 'b']


async def test_lone_surrogates_in_an_answer(tmp_path: Path) -> None:
    """What is in memory is what is in the log: a lone surrogate is U+FFFD in both."""
    desk = Desk(tmp_path, says('a\ud800b'))
    exchange = await desk.run()
    assert exchange.answer == 'a\ufffdb'
    assert desk.store.exchanges('2026-10-19-1') == [exchange]


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that cannot be appended is written again, told each time, and is there once; none is asked twice."""
    monkeypatch.setattr(model_router, 'WRITE_AGAIN_SECONDS', (0.01, 0.02))
    runner = says('precious')
    desk = Desk(tmp_path, runner)
    await desk.router.restore_session()
    times = 0

    def full(path: Path) -> None:
        nonlocal times
        if path == desk.store.log_path('2026-10-19-1') and times < 2:
            times += 1
            raise failing('append to', path, errno.ENOSPC)

    around(monkeypatch, 'append', full)
    with anyio.fail_after(30):
        await desk.run()
    assert desk.log() == ['precious']
    assert len(desk.router.exchanges) == 1
    assert len(runner.turns) == 1
    told = [event for event in desk.events if isinstance(event, WriteFailed)]
    assert [event.operation for event in told] == ['append to', 'append to']
    assert told[0].path == str(desk.store.log_path('2026-10-19-1'))
    assert (told[0].session_id, told[0].trading_date) == ('2026-10-19-1', MONDAY)
    assert told[0].hint


async def test_a_turn_can_be_cancelled_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for space; the turn then leaves no trace."""
    monkeypatch.setattr(model_router, 'WRITE_AGAIN_SECONDS', (30.0, 30.0))
    desk = Desk(tmp_path, says('precious'))
    await desk.router.restore_session()

    def full(path: Path) -> None:
        raise failing('append to', path, errno.ENOSPC)

    around(monkeypatch, 'append', full)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.run)
            await until(lambda: desk.events)
            tasks.cancel_scope.cancel()
    assert desk.log() == []
    assert list(desk.router.exchanges) == []


async def test_a_state_that_cannot_be_saved_costs_nothing_but_catching_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange stays and is returned, the failure is told, and the old state is still there."""
    runner = says('precious', {'resume': 'c1'})
    desk = Desk(tmp_path, runner)
    await desk.router.restore_session()

    def full(path: Path) -> None:
        raise failing('replace', path, errno.ENOSPC)

    around(monkeypatch, 'replace', full)
    assert (await desk.run()).answer == 'precious'
    assert desk.log() == ['precious']
    assert [event.path for event in desk.events if isinstance(event, WriteFailed)] == [
        str(desk.store.directory / 'state.json')
    ]
    state = desk.store.load_state()
    assert state is not None
    assert state.routes == {}
    monkeypatch.undo()
    await desk.run()
    assert (runner.turns[-1].runner_state, runner.turns[-1].exchanges_seen) == ({'resume': 'c1'}, 1)
    state = desk.store.load_state()
    assert state is not None
    assert state.routes['claude'].exchanges_seen == 2


async def test_a_cancelled_turn_leaves_nothing(tmp_path: Path) -> None:
    """Cut off while a backend answers there is no exchange, no failure, no next backend; the runner is closed."""
    runner, second = Scripted(TextPiece('well, '), anyio.sleep_forever), says('no')
    desk = Desk(tmp_path, runner, second, disk=InlineDisk())
    await desk.router.restore_session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await until(lambda: desk.events)
        assert desk.router.call is not None
        assert (desk.router.call.backend, desk.router.call.purpose) == ('claude', 'turn')
        tasks.cancel_scope.cancel()
    assert runner.closed == 1
    assert second.turns == []
    assert desk.log() == []
    assert list(desk.router.exchanges) == []
    assert desk.failures() == []
    assert desk.router.call is None
    runner.script = [TurnAnswered('yes')]
    assert (await desk.run()).answer == 'yes'


async def test_a_native_cancellation_is_one_too(tmp_path: Path) -> None:
    """A task that asyncio itself cancels is not taken for a failing backend."""
    runner, second = Scripted(anyio.sleep_forever), says('no')
    desk = Desk(tmp_path, runner, second)
    await desk.router.restore_session()
    task = asyncio.create_task(desk.run())
    await until(lambda: runner.turns)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert second.turns == []
    assert desk.failures() == []


async def test_a_turn_cancelled_while_it_is_kept_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first byte of a turn's end on a cancellation waits: the exchange is whole, in the log and in memory."""
    desk = Desk(tmp_path, says('precious'), disk=InlineDisk())
    await desk.router.restore_session()
    appended: list[Path] = []
    with anyio.CancelScope() as scope:

        def cancel_at_the_end(path: Path) -> None:
            appended.append(path)
            if len(appended) > 1:  # the first one is the turn's beginning
                scope.cancel()

        around(monkeypatch, 'append', cancel_at_the_end)
        await desk.run()
    assert desk.log() == ['precious']
    assert len(desk.router.exchanges) == 1
    state = desk.store.load_state()
    assert state is not None
    assert state.routes['claude'].exchanges_seen == 1


async def test_a_turn_over_midnight_is_logged_where_it_began(tmp_path: Path) -> None:
    """A turn that runs past the boundary is an exchange of the session it began in; a reset waits for it."""
    gate = anyio.Event()
    desk = Desk(tmp_path, Scripted(gate.wait, TurnAnswered('late')), disk=InlineDisk())
    await desk.router.restore_session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await anyio.wait_all_tasks_blocked()
        desk.clock.advance(timedelta(days=1))
        tasks.start_soon(desk.router.reset)
        await anyio.wait_all_tasks_blocked()
        assert desk.router.session_id == '2026-10-19-1'
        gate.set()
    exchange = desk.store.exchanges('2026-10-19-1')[0]
    assert exchange.answer == 'late'
    assert (exchange.started_at, exchange.finished_at) == (
        '2026-10-19T03:45:00.000000Z',
        '2026-10-20T03:45:00.000000Z',
    )
    assert (desk.router.session_id, desk.router.trading_date) == ('2026-10-20-1', TUESDAY)
    assert list(desk.router.exchanges) == []


# -- questions beside the session ------------------------------------------------------------------------------

QUESTIONED = [Exchange('told', 'answered', 'gpt', '2026-10-16T10:00:00Z')]


async def test_a_question_is_answered_beside_the_session(tmp_path: Path) -> None:
    """It comes with its own exchanges, without the runner's state, and becomes no exchange and no output."""
    runner = says('a', {'resume': 'c1'})
    desk = Desk(tmp_path, runner)
    await desk.run()
    state = desk.store.load_state()
    runner.script = [TextPiece('{'), UsageCounted(3, 4), TurnAnswered('{"summary": "x", "score": 3}', {'resume': 'c2'})]
    reply = await desk.router.ask(QUESTIONED, 'sum it up', SCHEMA)
    assert (reply.data, reply.backend) == ({'summary': 'x', 'score': 3}, 'claude')
    assert desk.router.usage.session == desk.router.usage.day == Usage(3, 4)
    turn = runner.turns[-1]
    assert (turn.text, turn.schema, turn.exchanges) == ('sum it up', SCHEMA, QUESTIONED)
    assert (turn.runner_state, turn.exchanges_seen) == (None, 0)
    assert desk.log() == ['a']
    assert desk.store.load_state() == state
    assert desk.events == []


async def test_a_question_without_a_schema_gets_text(tmp_path: Path) -> None:
    """Where no schema is given any text is an answer; the runner sees that it is no turn of the desk."""
    runner = says('quiet')
    desk = Desk(tmp_path, runner)
    await desk.router.restore_session()
    reply = await desk.router.ask([], 'how was it?')
    assert (reply.text, reply.data) == ('quiet', {})
    assert runner.turns[0].schema == {}


@pytest.mark.parametrize(
    ('answer', 'error'),
    [
        ('Sure! Here is your JSON.', 'no JSON object'),
        ('', 'no JSON object'),
        ('[]', 'no JSON object'),
        ('null', 'no JSON object'),
        ('{"summary": "x", "score": 3', 'no JSON object'),
        ('[' * 100_000, 'no JSON object'),
        ('{"a":' * 100_000, 'no JSON object'),
        ('\ud800', 'no JSON object'),
        ('{}', 'lacks summary, score'),
        ('{"summary": "x"}', 'lacks score'),
        ('{"summary": " ", "score": 3}', 'no text for summary'),
        ('{"summary": ["x"], "score": 3}', 'no text for summary'),
        ('{"summary": null, "score": 3}', 'no text for summary'),
    ],
)
async def test_nonsense_is_a_failure_and_the_next_one_is_asked(tmp_path: Path, answer: str, error: str) -> None:
    """An answer that is no object, or lacks what is required, is that backend's failure, told as of a review."""
    desk = Desk(tmp_path, says(answer), says(json.dumps({'summary': 'good', 'score': 1, 'more': None})))
    await desk.router.restore_session()
    reply = await desk.router.ask(QUESTIONED, 'sum it up', SCHEMA)
    assert (reply.backend, reply.data['summary']) == ('gpt', 'good')
    failure = desk.failures()[0]
    assert error in failure.error
    assert (failure.purpose, failure.backend, failure.trigger_id) == ('review', 'claude', None)
    assert len(failure.error) < 3000


async def test_when_all_answer_nonsense(tmp_path: Path) -> None:
    """NoBackend names each one's nonsense."""
    desk = Desk(tmp_path, says('no'), says('{}'))
    await desk.router.restore_session()
    with pytest.raises(NoBackend) as failure:
        await desk.router.ask(QUESTIONED, 'sum it up', SCHEMA)
    assert list(failure.value.failures) == ['claude', 'gpt']


async def test_a_question_has_a_time_of_its_own(tmp_path: Path) -> None:
    """A review that hangs is given up after the time of reviews."""
    desk = Desk(tmp_path, Scripted(anyio.sleep_forever), turn_seconds=60, review_seconds=0.02)
    await desk.router.restore_session()
    with anyio.fail_after(30), pytest.raises(NoBackend, match=r'within 0\.02 s'):
        await desk.router.ask([], 'how was it?')


# -- slots -----------------------------------------------------------------------------------------------------


async def test_slots_cap_the_calls_of_all_desks(tmp_path: Path) -> None:
    """Two desks with one slot call one model at a time; who waits has no deadline yet, and waiting costs it none."""
    gate, running, most = anyio.Event(), 0, 0

    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    slots = anyio.CapacityLimiter(1)
    desks = [
        Desk(
            tmp_path / str(number), Scripted(busy, TurnAnswered('done')), slots=slots, disk=InlineDisk(), turn_seconds=5
        )
        for number in range(3)
    ]
    async with anyio.create_task_group() as tasks:
        for desk in desks:
            tasks.start_soon(desk.run)
        await anyio.wait_all_tasks_blocked()
        calls = [desk.router.call for desk in desks if desk.router.call is not None]
        assert len(calls) == 3
        assert [call.backend for call in calls].count(None) == 2
        assert [call.ends_by for call in calls].count(None) == 2
        assert running == 1
        gate.set()
    assert most == 1
    assert [desk.log() for desk in desks] == [['done']] * 3


async def test_a_failing_call_gives_its_slot_back(tmp_path: Path) -> None:
    """A backend that raises, hangs or is cancelled leaves the slot to the next one."""
    slots = anyio.CapacityLimiter(1)
    for number, step in enumerate(
        [ValueError('bad'), anyio.sleep_forever, TurnRefused('no'), asyncio.CancelledError()]
    ):
        desk = Desk(tmp_path / str(number), Scripted(step), slots=slots, turn_seconds=0.02)
        with pytest.raises((NoBackend, TurnRefused)):
            await desk.run()
    with anyio.move_on_after(0.02):
        await Desk(tmp_path / 'cancelled', Scripted(anyio.sleep_forever), slots=slots).run()
    assert slots.borrowed_tokens == 0


async def test_before_a_session_is_restored_there_is_none(tmp_path: Path) -> None:
    """A router that was only built knows no session and has touched nothing."""
    desk = Desk(tmp_path, says('x'))
    assert (desk.router.session_id, desk.router.trading_date, list(desk.router.exchanges)) == (None, None, [])
    assert files.names_in(tmp_path) == []
    assert not await desk.router.restore_session()
    assert (desk.router.session_id, desk.router.trading_date) == ('2026-10-19-1', MONDAY)
