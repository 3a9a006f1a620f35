"""Which backend answers, what each failure leads to, and that nothing is done twice on the way."""

import errno
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from keeper_fakes import around, failing, never, spare_the_disk
from router_fakes import Desk, Scripted, says

from trading_agent.conversation.journal import verify
from trading_agent.conversation.records import CallFailed, ToolRequested, TurnBegun, TurnCut
from trading_agent.errors import (
    BackendBusy,
    BackendDown,
    BackendError,
    ContextTooSmall,
    InvalidAnswer,
    LostSession,
    NoBackend,
    NotJournaled,
    OutcomeUnknown,
    TooManyRounds,
    TurnRefused,
)
from trading_agent.events import BackendDown as WentDown
from trading_agent.events import BackendUp, BudgetExhausted, BudgetWarned, Event, ModelCallFailed
from trading_agent.routing import failover
from trading_agent.routing.backend import Backend, CallLimits
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.routing.model_router import ModelRouter
from trading_agent.routing.turn_runner import (
    TextPiece,
    ToolCalled,
    ToolReturned,
    Turn,
    TurnAnswered,
    TurnEvent,
    TurnRunner,
    UsageCounted,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_the_disk(monkeypatch)
    monkeypatch.setattr(failover, 'BUSY_SECONDS', 0.001)


class InTurn:
    """Does one after the other of what it was given, a call at a time; the last one again and again.

    Attributes:
        turns: What it was asked.
    """

    def __init__(self, *calls: Any) -> None:  # noqa: ANN401 - an exception, or the steps of a call
        self._calls = list(calls)
        self.turns: list[Turn] = []

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        self.turns.append(turn)
        call = self._calls.pop(0) if len(self._calls) > 1 else self._calls[0]
        for step in call if isinstance(call, list) else [call]:
            if isinstance(step, BaseException):
                raise step
            yield TurnAnswered(step) if isinstance(step, str) else step


def with_backends(desk: Desk, *backends: tuple[str, TurnRunner, CallLimits], **options: Any) -> Desk:  # noqa: ANN401 - as ModelRouter takes them
    """Gives a desk backends with limits."""
    made = [Backend(name, runner, BackendHealth(name, desk.events.append), limits) for name, runner, limits in backends]
    desk.router = ModelRouter('main', desk.store, made, desk.events.append, desk.clock, **options)
    return desk


def told(desk: Desk, kind: type[Event]) -> list[Event]:
    """Returns the events of a kind."""
    return [event for event in desk.events if type(event) is kind]


# -- each failure and what it leads to -------------------------------------------------------------------------


async def test_a_busy_backend_is_asked_again(tmp_path: Path) -> None:
    """Rate limited or cut off it is asked again after a moment, and nobody else is; it counts as healthy."""
    first = InTurn(BackendBusy('rate limited', retry_after=0.01), [TextPiece('half'), BackendBusy('cut')], 'whole')
    second = says('no')
    desk = Desk(tmp_path, first, second)
    assert (await desk.run()).answer == 'whole'
    assert (len(first.turns), len(second.turns)) == (3, 0)
    assert desk.router.failing == set()
    assert len([record for record in desk.journal() if isinstance(record, CallFailed)]) == 2


def test_each_pause_is_twice_as_long() -> None:
    """Before a busy backend is asked again it is left alone, each time twice as long, and up to a quarter longer."""
    for tries in range(1, failover.TRIES):
        pauses = [failover._wait_before(BackendBusy('cut'), tries) for _ in range(200)]
        shortest = failover.BUSY_SECONDS * 2 ** (tries - 1)
        assert all(pause is not None and shortest <= pause <= 1.25 * shortest for pause in pauses)
        assert len(set(pauses)) > 100
    assert failover._wait_before(BackendBusy('cut'), failover.TRIES) is None


@pytest.mark.parametrize('retry_after', [16.0, 5000.0])
async def test_patience_is_bounded(tmp_path: Path, retry_after: float) -> None:
    """Who asks to be left alone for long is passed over at once, and is left alone for as long as it asked."""
    first = InTurn(BackendBusy('rate limited', retry_after=retry_after))
    desk = Desk(tmp_path, first, says('yes'))
    assert (await desk.run()).backend_name == 'gpt'
    assert len(first.turns) == 1
    (health, _) = [backend.health for backend in desk.router._backends]
    assert min(retry_after, 3600) - 10 <= health.cools_for <= min(retry_after, 3600)


async def test_tries_are_bounded(tmp_path: Path) -> None:
    """A backend that stays busy is asked three times in a row, and then the next one."""
    first = InTurn(BackendBusy('rate limited'))
    desk = Desk(tmp_path, first, says('yes'))
    assert (await desk.run()).backend_name == 'gpt'
    assert len(first.turns) == 3


@pytest.mark.parametrize('error', [BackendDown('overloaded'), BackendError('odd'), ValueError('bug')])
async def test_a_backend_that_is_down_is_left_alone(tmp_path: Path, error: Exception) -> None:
    """The next one is asked at once, then too while the first cools down, and `backend_down` is told once."""
    first, second = InTurn(error), says('yes')
    desk = Desk(tmp_path, first, second)
    for _ in range(3):
        assert (await desk.run()).backend_name == 'gpt'
    assert len(first.turns) == 1
    assert len(told(desk, WentDown)) == 1
    assert desk.router.failing == {'claude'}


async def test_the_preferred_one_gets_the_next_turn_back(tmp_path: Path) -> None:
    """After its cool-down one call tries it; answered, it is preferred again, and `backend_up` is told."""
    first = InTurn(BackendDown('overloaded'), BackendDown('still'), 'back')
    desk = Desk(tmp_path, first, says('yes'))
    assert (await desk.run()).backend_name == 'gpt'
    desk.cool_down()
    assert (await desk.run()).backend_name == 'gpt'
    desk.cool_down()
    assert [(await desk.run()).backend_name for _ in range(2)] == ['claude', 'claude']
    up = told(desk, BackendUp)
    assert [(event.backend, event.failures) for event in up if isinstance(event, BackendUp)] == [('claude', 2)]
    assert len(told(desk, WentDown)) == 1


async def test_a_cool_down_grows(tmp_path: Path) -> None:
    """Each failure in a row doubles the wait, up to a bound."""
    desk = Desk(tmp_path, InTurn(BackendDown('down')), says('yes'))
    waits = []
    for _ in range(12):
        await desk.run()
        waits.append(desk.router._backends[0].health.cools_for)
        desk.cool_down()
    assert waits[0] < 1.3
    assert 3 < waits[2] < 5
    assert max(waits) < 145
    assert waits[-1] > 90


async def test_one_desk_tries_for_all(tmp_path: Path) -> None:
    """A backend's health is shared: while one desk tries it after a failure, another passes it over."""
    trying, let_go = anyio.Event(), anyio.Event()

    async def slow() -> None:
        trying.set()
        await let_go.wait()

    shared = BackendHealth('claude', lambda _: None)
    shared.failed(BackendDown('down'))
    shared._until = 0.0
    desks = [Desk(tmp_path / name, Scripted(slow, TurnAnswered('a')), says('b')) for name in ('one', 'two')]
    for desk in desks:
        runners = [backend.runner for backend in desk.router._backends]
        backends = [
            Backend('claude', runners[0], shared),
            Backend('gpt', runners[1], BackendHealth('gpt', lambda _: None)),
        ]
        desk.router = ModelRouter('main', desk.store, backends, desk.events.append, desk.clock)
    answers: list[str] = []

    async def run(desk: Desk) -> None:
        answers.append((await desk.run()).answer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, desks[0])
        await trying.wait()
        await run(desks[1])
        assert answers == ['b']
        let_go.set()
    assert answers == ['b', 'a']
    assert shared.state == 'up'


async def test_a_trial_that_is_cut_off_is_no_verdict(tmp_path: Path) -> None:
    """After a trial that a person cut off, the backend is tried again."""
    first = Scripted(BackendDown('down'))
    desk = Desk(tmp_path, first, says('yes'))
    await desk.run()
    desk.cool_down()
    first.script = [lambda: never(None)]
    with anyio.move_on_after(0.02):
        await desk.run()
    await desk.router.cut_off('pause')
    first.script = [TurnAnswered('back')]
    assert (await desk.run()).backend_name == 'claude'


@pytest.mark.parametrize('error', [ContextTooSmall('too long'), TooManyRounds('no answer'), InvalidAnswer('x', 'y')])
async def test_what_is_not_a_backends_fault(tmp_path: Path, error: Exception) -> None:
    """The next one is asked, and the first one stays healthy."""
    desk = Desk(tmp_path, InTurn(error, 'yes'), says('other'))
    assert (await desk.run()).backend_name == 'gpt'
    assert desk.router.failing == set()
    assert (await desk.run()).backend_name == 'claude'


async def test_a_refused_request_fails_the_turn(tmp_path: Path) -> None:
    """Nobody else is asked what was refused, and the backend stays healthy."""
    second = says('no')
    desk = Desk(tmp_path, InTurn(TurnRefused('policy')), second)
    with pytest.raises(TurnRefused):
        await desk.run()
    assert second.turns == []
    assert desk.router.failing == set()


async def test_a_lost_session_is_told_anew(tmp_path: Path) -> None:
    """A backend that forgot its session is asked once more, at once, with the whole session and no token."""
    runner = InTurn(
        [TurnAnswered('one', {'resume': 'a'})], LostSession('unknown id'), [TurnAnswered('two', {'r': 'b'})]
    )
    desk = Desk(tmp_path, runner)
    await desk.run()
    await desk.run()
    assert [(turn.exchanges_seen, turn.runner_state) for turn in runner.turns] == [
        (0, None),
        (1, {'resume': 'a'}),
        (0, None),
    ]
    state = desk.store.load_state()
    assert state is not None
    assert state.routes['claude'].runner_state == {'r': 'b'}


async def test_a_session_lost_twice_is_a_failure(tmp_path: Path) -> None:
    """It is not asked for ever."""
    runner = InTurn(LostSession('unknown id'))
    desk = Desk(tmp_path, runner)
    with pytest.raises(NoBackend):
        await desk.run()
    assert len(runner.turns) == 2


async def test_all_are_left_alone(tmp_path: Path) -> None:
    """While every backend cools down none is asked, and the error says of each why not."""
    first = InTurn(BackendDown('overloaded'))
    desk = Desk(tmp_path, first)
    for _ in range(2):
        with pytest.raises(NoBackend) as failure:
            await desk.run()
    assert len(first.turns) == 1
    assert 'overloaded' in failure.value.failures['claude']
    assert 'left alone' in failure.value.failures['claude']


async def test_a_disabled_backend_is_not_asked(tmp_path: Path) -> None:
    """A backend that a person took out of use is passed over until it is enabled."""
    first = says('a')
    desk = Desk(tmp_path, first, says('b'))
    health = desk.router._backends[0].health
    health.disabled = 'disabled by anil'
    assert (await desk.run()).backend_name == 'gpt'
    assert health.state == 'disabled'
    health.disabled = ''
    assert (await desk.run()).backend_name == 'claude'


# -- time ------------------------------------------------------------------------------------------------------


async def test_a_first_token_that_does_not_come(tmp_path: Path) -> None:
    """A backend that is silent from the start, or falls silent, is given up within its limit."""
    limits = CallLimits(first_token_seconds=0.05, between_tokens_seconds=0.05)
    scripts: list[list[Any]] = [[lambda: never(None)], [TextPiece('a'), lambda: never(None)]]
    for number, steps in enumerate(scripts):
        desk = with_backends(
            Desk(tmp_path / str(number)), ('a', Scripted(*steps), limits), ('b', says('yes'), CallLimits())
        )
        with anyio.fail_after(30):
            assert (await desk.run()).backend_name == 'b'
        failures = [event.error for event in told(desk, ModelCallFailed) if isinstance(event, ModelCallFailed)]
        assert failures
        assert all('nothing came' in error for error in failures)


async def test_a_tool_may_take_longer(tmp_path: Path) -> None:
    """While a tool runs nothing has to come; a slow tool is not a slow model."""

    async def tool() -> None:
        await anyio.sleep(0.15)

    limits = CallLimits(first_token_seconds=0.05, between_tokens_seconds=0.05)
    script = [ToolCalled('c', 'look', {}), tool, ToolReturned('c', 'x'), TurnAnswered('yes')]
    desk = with_backends(Desk(tmp_path), ('a', Scripted(*script), limits))
    assert (await desk.run()).answer == 'yes'


# -- tokens ----------------------------------------------------------------------------------------------------


async def test_a_daily_budget(tmp_path: Path) -> None:
    """At four fifths it is told, used up the next backend is asked, each told once; the next day begins anew."""
    first = InTurn([UsageCounted(45, 0), TurnAnswered('a')])
    limits = CallLimits(daily_tokens=100)
    desk = with_backends(Desk(tmp_path), ('a', first, limits), ('b', says('b'), CallLimits()))
    assert [(await desk.run()).backend_name for _ in range(5)] == ['a', 'a', 'a', 'b', 'b']
    assert len(told(desk, BudgetWarned)) == 1
    (exhausted,) = told(desk, BudgetExhausted)
    assert isinstance(exhausted, BudgetExhausted)
    assert (exhausted.backend, exhausted.tokens, exhausted.budget) == ('a', 135, 100)
    again = with_backends(desk, ('a', first, limits), ('b', says('b'), CallLimits()))
    await again.router.restore_session()
    assert (await again.run()).backend_name == 'b'
    desk.clock.advance(timedelta(days=1))
    await again.router.reset()
    assert (await again.run()).backend_name == 'a'


async def test_without_a_budget_left_the_desk_is_held(tmp_path: Path) -> None:
    """Where no other backend is left the trigger waits, and the error says what is used up; a review is still made."""
    first = InTurn([UsageCounted(45, 60), TurnAnswered('a')])
    desk = with_backends(Desk(tmp_path), ('a', first, CallLimits(daily_tokens=100)))
    await desk.run()
    with pytest.raises(NoBackend, match='daily_token_budget of 100'):
        await desk.run()
    assert (await desk.router.ask([], 'how was it?')).text == 'a'


# -- calls with effects ----------------------------------------------------------------------------------------

ORDER = [ToolCalled('c1', 'place_order', {'symbol': 'ABC'}), ToolReturned('c1', 'done')]


@pytest.mark.parametrize('error', [BackendBusy('cut'), BackendDown('down'), ValueError('bug'), ContextTooSmall('long')])
async def test_a_turn_that_has_acted_is_not_run_again(tmp_path: Path, error: Exception) -> None:
    """After a call that may have had effects no failure leads to another try, here or elsewhere: nobody knows."""
    first, second = InTurn([*ORDER, error]), says('no')
    desk = Desk(tmp_path, first, second)
    with pytest.raises(OutcomeUnknown) as unknown:
        await desk.run()
    assert unknown.value.calls == ['place_order({"symbol":"ABC"})']
    assert (len(first.turns), len(second.turns)) == (1, 0)
    cut = desk.journal()[-1]
    assert isinstance(cut, TurnCut)
    assert cut.cause == 'unknown'


async def test_a_turn_that_only_looked_is_run_again(tmp_path: Path) -> None:
    """Calls that the desk's configuration names as read-only change nothing."""
    first = InTurn([ToolCalled('c1', 'get_quote', {}), ToolReturned('c1', '1'), BackendBusy('cut')], 'yes')
    desk = Desk(tmp_path, first)
    desk.router._journal._read_only = lambda name: name == 'get_quote'
    assert (await desk.run()).answer == 'yes'
    (requested, *_) = [record for record in desk.journal() if isinstance(record, ToolRequested)]
    assert requested.read_only


async def test_a_call_is_on_the_disk_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that may have effects is synced before the runner goes on; where it cannot be, it is not made."""
    synced: list[bool] = []
    made: list[bool] = []

    async def make() -> None:
        made.append(synced[-1:] == [True])

    desk = Desk(tmp_path, Scripted(ToolCalled('c1', 'place_order', {}), make, TurnAnswered('done')))
    await desk.router.restore_session()
    real = desk.router._journal.journal.append

    def append(*records: Any, sync: bool = False) -> None:  # noqa: ANN401 - any record
        real(*records, sync=sync)
        synced.append(sync and any(isinstance(record, ToolRequested) for record in records))

    monkeypatch.setattr(desk.router._journal.journal, 'append', append)
    await desk.run()
    assert made == [True]


async def test_a_call_that_cannot_be_written_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the turn waits before it acts, and says so; nothing reads as if it had acted."""
    made: list[bool] = []
    full = False

    async def fill() -> None:
        nonlocal full
        full = True

    async def make() -> None:
        made.append(True)

    def refuse(path: Path) -> None:
        if full:
            raise failing('append to', path, errno.ENOSPC)

    first, second = Scripted(fill, ToolCalled('c1', 'order', {}), make, TurnAnswered('done')), says('no')
    desk = Desk(tmp_path, first, second)
    await desk.router.restore_session()
    around(monkeypatch, 'append', refuse)
    with pytest.raises(NotJournaled):
        await desk.run()
    assert made == []
    assert second.turns == []
    assert desk.router.failing == set()
    full = False
    first.script = [ToolCalled('c1', 'order', {}), make, TurnAnswered('done')]
    assert (await desk.run(attempt=2)).answer == 'done'
    assert made == [True]


class Agentic(InTurn):
    """A program that uses tools of its own."""

    acts_by_itself = True


async def test_an_agents_whole_turn_is_a_call(tmp_path: Path) -> None:
    """Before a backend that acts by itself is asked that is on the disk; cut off, its outcome is not known."""
    desk = Desk(tmp_path, Agentic([TextPiece('I am going to'), ValueError('died')]), says('no'))
    with pytest.raises(OutcomeUnknown):
        await desk.run()
    kinds = [type(record) for record in desk.journal()]
    assert kinds.index(ToolRequested) < len(kinds) - 1
    assert kinds[1] is TurnBegun


async def test_an_agent_that_says_that_it_failed(tmp_path: Path) -> None:
    """Its own word that it could not answer, before it called anything, is enough: the next one is asked."""
    desk = Desk(tmp_path, Agentic(BackendDown('overloaded')), says('yes'))
    assert (await desk.run()).backend_name == 'gpt'
    acted = Desk(tmp_path / 'acted', Agentic([ToolCalled('c', 'Bash', {}), BackendDown('overloaded')]), says('yes'))
    with pytest.raises(OutcomeUnknown):
        await acted.run()


@pytest.mark.parametrize('second', ['order', 'get_quote'])
async def test_a_full_disk_behind_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    """A turn that has acted, and cannot write down its next call, is not run again; one that only looks goes on."""
    full = False

    async def fill() -> None:
        nonlocal full
        full = not full

    def refuse(path: Path) -> None:
        if full:
            raise failing('append to', path, errno.ENOSPC)

    script = [*ORDER, fill, ToolCalled('c2', second, {}), ToolReturned('c2', 'x'), fill, TurnAnswered('done')]
    desk = Desk(tmp_path, Scripted(*script), says('no'))
    desk.router._journal._read_only = lambda name: name == 'get_quote'
    await desk.router.restore_session()
    around(monkeypatch, 'append', refuse)
    if second == 'get_quote':
        assert (await desk.run()).answer == 'done'
        assert verify(desk.journal_path).broken is None
    else:
        with pytest.raises(OutcomeUnknown) as unknown:
            await desk.run()
        assert unknown.value.calls == ['place_order({"symbol":"ABC"})']
    requested = [record.name for record in desk.journal() if isinstance(record, ToolRequested)]
    assert requested == ['place_order', 'get_quote'][: 1 + (second == 'get_quote')]
    assert desk.router.failing == set()
