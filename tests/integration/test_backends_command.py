"""`backends` against a real daemon: how they are, one tiny call, out of use and back, and what `status` says of it."""

import errno
import importlib.util
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from cli_fakes import call, lonely
from click.testing import Result
from daemon_fakes import MORNING, answered, config_for, send, told, until
from llmock_server import KEY, mock_of
from llmock_server import running as llmock_running

from trading_agent import files
from trading_agent.cli import backends as backends_module
from trading_agent.cli import unit
from trading_agent.clock import ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon import backend_trial, desk_loop
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.desk import Desk as RunningDesk
from trading_agent.errors import BackendDown, BackendError, StorageError, TurnRefused
from trading_agent.events import (
    BackendDisabled,
    BackendEnabled,
    BackendTested,
    BackendUp,
    Event,
    ModelCallFailed,
    StoreDamaged,
    TurnFinished,
    WriteFailed,
)
from trading_agent.events import BackendDown as WentDown
from trading_agent.messages import Usage
from trading_agent.routing.context import tokens_in
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent, UsageCounted

FILE = 'disabled-backends.json'


class Book:
    """What the backends of a test were asked, and what each is to do.

    Attributes:
        asked: Each backend's name with the turn that it was given.
        runners: How many runners were made of each.
        failing: What a backend raises.
        gates: What an answer of a backend waits for.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, Turn]] = []
        self.runners: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.gates: dict[str, anyio.Event] = {}

    def turns_of(self, name: str) -> list[Turn]:
        """Returns what a backend was asked."""
        return [turn for asked, turn in self.asked if asked == name]

    def backend(self, **options: Any) -> Backend:  # noqa: ANN401 - as in the configuration
        """Returns a backend as configured."""
        return Backend(kind='test_backends_command:made', options={'book': self, **options})


class Booked:
    """A backend that says its name, and counts tokens as it goes."""

    def __init__(self, name: str, book: Book) -> None:
        self._name = name
        self._book = book

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        # What is handed over goes on growing.
        self._book.asked.append((self._name, replace(turn, exchanges=tuple(turn.exchanges))))
        if self._name in self._book.failing:
            raise self._book.failing[self._name]
        yield UsageCounted(input_tokens=100)
        if self._name in self._book.gates:
            await self._book.gates[self._name].wait()
        if turn.schema is None:
            yield TextPiece(f'{self._name} ')
        yield UsageCounted(output_tokens=20)
        answer = (
            f'{self._name} has noted it' if turn.schema is None else '{"summary": "x", "memory": "", "reasons": ""}'
        )
        yield TurnAnswered(answer, model=f'{self._name}-2026')


def made(name: str, options: dict[str, Any]) -> Booked:
    """Makes a backend of this kind."""
    options['book'].runners.append(name)
    return Booked(name, options['book'])


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely(tmp_path, monkeypatch)
    monkeypatch.setattr(backends_module, 'login_name', lambda: 'anil')


@pytest.fixture
def book() -> Book:
    """Returns what the backends of the test share."""
    return Book()


def configured(tmp_path: Path, book: Book) -> Config:
    """Returns a desk `main` that prefers `claude` to `gpt`, and a backend `spare` that no desk uses."""
    backends = {'claude': book.backend(model='claude-x'), 'gpt': book.backend(), 'spare': book.backend()}
    return config_for(tmp_path / 'ws', desks=[Desk(name='main', backends=['claude', 'gpt'])], backends=backends)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Daemon]:
    """Runs a daemon with its socket, and without an index."""
    async with Daemon(config, ManualClock(MORNING), environ={}, index=False) as daemon:
        yield daemon


async def command(daemon: Daemon, *arguments: str) -> Result:
    """Runs a command beside the daemon."""
    workspace = str(daemon.workspace)
    return await anyio.to_thread.run_sync(partial(call, *arguments, '--workspace', workspace))


async def output(daemon: Daemon, *arguments: str) -> str:
    """Returns what a command writes that succeeds."""
    result = await command(daemon, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def as_json(daemon: Daemon, *arguments: str, exit_code: int = 0) -> Any:  # noqa: ANN401 - whatever it answers
    """Returns what a command tells programs."""
    result = await command(daemon, *arguments, '--json')
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def main_of(daemon: Daemon) -> RunningDesk:
    """Returns the desk `main`."""
    return daemon.supervisor.desks['main']


def files_in(folder: Path) -> dict[str, bytes]:
    """Returns every file below a folder with its content."""
    return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


# -- how they are ------------------------------------------------------------------------------------------------


async def test_how_each_backend_is(tmp_path: Path, book: Book) -> None:
    """For programs: kind, model, state, and for each desk the place, the tokens of the day and the gap to catch up."""
    config = configured(tmp_path, book)
    desks = [*config.desks, Desk(name='options', backends=['gpt', 'claude'])]
    config = config_for(config.workspace, desks=desks, backends=config.backends)
    async with running(config) as daemon:
        await answered(daemon, 'main', 'a')
        book.failing['claude'] = BackendDown('overloaded', 'wait a little', retry_after=40.0)
        await answered(daemon, 'main', 'b')
        await answered(daemon, 'main', 'c')
        shown = (await as_json(daemon, 'backends'))['backends']
        exchanges = main_of(daemon).router.exchanges
    assert [backend['name'] for backend in shown] == ['claude', 'gpt', 'spare']
    claude, gpt, spare = shown
    assert (claude['kind'], claude['model']) == ('test_backends_command:made', 'claude-x')
    assert (claude['state'], claude['failures'], claude['error_type']) == ('failing', 1, 'BackendDown')
    assert (claude['error'], claude['hint'], claude['disabled']) == ('overloaded', 'wait a little', None)
    assert 30_000 < claude['retry_after_ms'] <= 40_000
    missed = sum(tokens_in(exchange.trigger_text) + tokens_in(exchange.answer) for exchange in exchanges[1:])
    used = {'input_tokens': 100, 'output_tokens': 20}
    main = {'desk': 'main', 'place': 1, 'usage': used, 'daily_token_budget': 0}
    options = {'desk': 'options', 'usage': {}, 'daily_token_budget': 0, 'exchanges_behind': 0, 'tokens_behind': 0}
    assert claude['desks'] == [
        {**main, 'exchanges_behind': 2, 'tokens_behind': missed},
        {**options, 'place': 2},
    ]
    assert [(gpt['model'], gpt['state'], gpt['retry_after_ms'], gpt['error'])] == [(None, 'up', 0, '')]
    used = {'input_tokens': 200, 'output_tokens': 40}
    assert gpt['desks'] == [
        {**main, 'place': 2, 'usage': used, 'exchanges_behind': 0, 'tokens_behind': 0},
        {**options, 'place': 1},
    ]
    assert (spare['state'], spare['desks']) == ('up', [])


async def test_how_they_look(tmp_path: Path, book: Book) -> None:
    """For people: one table of the backends, one of the desks' use of them, and below them what is wrong."""
    async with running(configured(tmp_path, book)) as daemon:
        await answered(daemon, 'main', 'a')
        await output(daemon, 'backends', 'disable', 'gpt', '--reason', 'too dear')
        shown = (await output(daemon, 'backends')).split('\n')
    assert [line.split() for line in shown[:4]] == [
        ['BACKEND', 'STATE', 'KIND', 'MODEL'],
        ['claude', 'up', 'test_backends_command:made', 'claude-x'],
        ['gpt', 'disabled', 'test_backends_command:made', '-'],
        ['spare', 'up', 'test_backends_command:made', '-'],
    ]
    about = tokens_in('tell me about a') + tokens_in('claude has noted it')
    assert shown[5].split() == ['DESK', 'PLACE', 'BACKEND', 'TOKENS', 'TODAY', 'BEHIND']
    assert shown[6].split() == ['main', 'preferred', 'claude', '120', '-']
    assert shown[7].split('gpt')[1].split() == ['(disabled)', '-', '1', 'exchange,', 'about', str(about), 'tokens']
    assert shown[9] == (
        'gpt: disabled by anil at 2026-03-10 10:00:00 IST: too dear (`trading-agent backends enable gpt`)'
    )
    assert shown[10:] == ['spare: no desk uses it', '']


async def test_the_built_in_one_is_not_in_the_way(tmp_path: Path, book: Book) -> None:
    """`offline`, which nobody declared, is shown where a desk uses it, and nowhere else; it can be tested anyway."""
    async with running(configured(tmp_path, book)) as daemon:
        assert 'offline' not in await output(daemon, 'backends')
        assert (await as_json(daemon, 'backends', 'test', 'offline'))['backends'][0]['model'] == 'offline'
    async with running(config_for(tmp_path / 'other')) as daemon:
        (only,) = (await as_json(daemon, 'backends'))['backends']
        assert (only['name'], only['kind'], [use['desk'] for use in only['desks']]) == ('offline', 'offline', ['main'])


@pytest.mark.parametrize('arguments', [(), ('test',), ('test', 'x'), ('disable', 'x'), ('enable', 'x')])
def test_it_takes_a_daemon(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Without a daemon each of the commands ends with 69, and says where it has looked."""
    result = call('backends', *arguments, '--workspace', str(tmp_path))
    assert result.exit_code == 69
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize('what', ['test', 'disable', 'enable'])
async def test_an_unknown_name(tmp_path: Path, book: Book, what: str) -> None:
    """A name that no backend has is told with the nearest one, and nothing is done."""
    async with running(configured(tmp_path, book)) as daemon:
        result = await command(daemon, 'backends', what, 'cluade')
        assert result.exit_code == 1
        assert "no backend is named 'cluade'" in result.stderr
        assert "did you mean 'claude'?" in result.stderr
    assert book.asked == []
    assert not (tmp_path / 'ws' / FILE).exists()


# -- one tiny call -----------------------------------------------------------------------------------------------


async def test_each_is_called(tmp_path: Path, book: Book) -> None:
    """Each configured backend is called once, one that no desk uses too; latency, usage and model are told, exit 0."""
    async with running(configured(tmp_path, book)) as daemon:
        with daemon.bus.subscribe(BackendTested) as events:
            shown = await as_json(daemon, 'backends', 'test')
            assert {(event.backend, event.by, event.outcome) for event in told(events, BackendTested)} == {
                (name, 'anil', 'answered') for name in ('claude', 'gpt', 'spare')
            }
        lines = (await output(daemon, 'backends', 'test', 'claude')).split('\n')
    assert shown['ok']
    assert [result['name'] for result in shown['backends']] == ['claude', 'gpt', 'spare']
    for result in shown['backends']:
        assert result['usage'] == {'input_tokens': 100, 'output_tokens': 20}
        assert (result['ok'], result['state'], result['model']) == (True, 'up', f'{result["name"]}-2026')
        assert 0 <= result['first_output_ms'] <= result['duration_ms'] < 5000
    assert lines[0].startswith('claude  ok      first output after ')
    assert lines[0].endswith('100 tokens in, 20 out, model claude-2026')
    assert sorted(name for name, _ in book.asked) == ['claude', 'claude', 'gpt', 'spare']


async def test_a_call_is_beside_every_desk(tmp_path: Path, book: Book) -> None:
    """A test is made with a runner of its own, as a question beside any session, and changes no file of a desk."""
    async with running(configured(tmp_path, book)) as daemon:
        await answered(daemon, 'main', 'a')
        before, status = files_in(tmp_path / 'ws' / 'desks'), main_of(daemon).status()
        made_before = list(book.runners)
        for _ in range(3):
            await output(daemon, 'backends', 'test')
        assert files_in(tmp_path / 'ws' / 'desks') == before
        assert main_of(daemon).status() == status
        assert sorted(book.runners[len(made_before) :]) == ['claude', 'gpt', 'spare']  # kept from call to call
    turn = book.asked[-1][1]
    assert (turn.schema, turn.tools, turn.exchanges, turn.memory, turn.runner_state) == ({}, (), (), '', None)
    assert turn.desk == backend_trial.DESK


async def test_it_is_called_while_a_turn_runs(tmp_path: Path, book: Book) -> None:
    """A test waits neither for a turn that runs on the same backend nor for a slot."""
    config = configured(tmp_path, book)
    config = config_for(config.workspace, desks=config.desks, backends=config.backends, max_concurrent_turns=1)
    async with running(config) as daemon:
        gate = book.gates['claude'] = anyio.Event()
        await send(daemon, 'main', 'a')
        await until(lambda: book.turns_of('claude'), 'the turn runs')
        del book.gates['claude']
        assert (await as_json(daemon, 'backends', 'test', 'claude'))['ok']
        assert main_of(daemon).turn is not None
        gate.set()
        await until(lambda: main_of(daemon).queue.closing('a'), 'it is answered')


async def test_one_that_fails(tmp_path: Path, book: Book) -> None:
    """A failure is told with its kind and its hint, the others all the same, with exit code 1."""
    async with running(configured(tmp_path, book)) as daemon:
        book.failing['gpt'] = BackendDown('overloaded\n(529)', 'wait a little')
        result = await command(daemon, 'backends', 'test')
        assert result.exit_code == 1
        shown = sorted(line for line in result.stdout.split('\n') if line)
        assert shown[0] == '        hint: wait a little'
        assert [line.split()[:2] for line in shown[1:]] == [['claude', 'ok'], ['gpt', 'FAILED'], ['spare', 'ok']]
        assert shown[2].endswith(': BackendDown: overloaded (529)')
        told_programs = await as_json(daemon, 'backends', 'test', 'gpt', exit_code=1)
        assert not told_programs['ok']
        (failed,) = told_programs['backends']
        assert (failed['ok'], failed['state'], failed['error_type']) == (False, 'failing', 'BackendDown')
        assert (failed['error'], failed['hint']) == ('overloaded\n(529)', 'wait a little')


async def test_a_failure_begins_a_cool_down_and_an_answer_ends_it(tmp_path: Path, book: Book) -> None:
    """A failed test makes the desks pass the backend over; one that is answered gives it the next turn at once."""
    async with running(configured(tmp_path, book)) as daemon:
        with daemon.bus.subscribe(WentDown, BackendUp, TurnFinished, ModelCallFailed) as events:
            book.failing['claude'] = BackendDown('overloaded', retry_after=600.0)
            assert (await command(daemon, 'backends', 'test', 'claude')).exit_code == 1
            await answered(daemon, 'main', 'a')
            del book.failing['claude']
            await output(daemon, 'backends', 'test', 'claude')
            await answered(daemon, 'main', 'b')
            seen = told(events, Event)
    assert [type(event) for event in seen] == [WentDown, TurnFinished, BackendUp, TurnFinished]
    assert [event.backend for event in seen if isinstance(event, TurnFinished)] == ['gpt', 'claude']


async def test_an_answer_lets_waiting_desks_go_on(tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desk whose backends had all failed runs its trigger as soon as a test of one is answered."""
    monkeypatch.setattr(desk_loop, 'TRY_AGAIN_SECONDS', (600.0, 600.0))
    async with running(configured(tmp_path, book)) as daemon:
        for name in ('claude', 'gpt'):
            book.failing[name] = BackendDown('overloaded', retry_after=600.0)
        await send(daemon, 'main', 'a')
        await until(lambda: main_of(daemon).trouble, 'no backend can answer')
        del book.failing['gpt']
        await output(daemon, 'backends', 'test', 'gpt')
        closing = await until(lambda: main_of(daemon).queue.closing('a'), 'it is closed')
        assert closing.outcome == 'answered'


async def test_a_refusal_says_nothing_of_its_health(tmp_path: Path, book: Book) -> None:
    """A backend that refuses what it is asked has failed the test, and is as healthy as before."""
    async with running(configured(tmp_path, book)) as daemon:
        book.failing['claude'] = TurnRefused('it does not say OK')
        (result,) = (await as_json(daemon, 'backends', 'test', 'claude', exit_code=1))['backends']
        assert (result['error_type'], result['state']) == ('TurnRefused', 'up')
        assert daemon.healths['claude'].may_be_asked()


async def test_one_that_never_answers(tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is silent is given up after the test's own limit, and counts as failing."""
    monkeypatch.setattr(backend_trial, 'TRIAL_SECONDS', 0.05)
    book.gates['claude'] = anyio.Event()
    async with running(configured(tmp_path, book)) as daemon:
        (result,) = (await as_json(daemon, 'backends', 'test', 'claude', exit_code=1))['backends']
    assert (result['error'], result['state']) == ('no answer within 0.05 s', 'failing')
    assert 50 <= result['duration_ms'] < 5000


async def test_a_stop_does_not_wait_for_it(tmp_path: Path, book: Book) -> None:
    """A daemon that stops ends a test that is under way, and says so."""
    book.gates['claude'] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        async with running(configured(tmp_path, book)) as daemon:
            results: list[Result] = []

            async def test() -> None:
                results.append(await command(daemon, 'backends', 'test', 'claude'))

            tasks.start_soon(test)
            await until(lambda: book.turns_of('claude'), 'it is being tested')
        assert not daemon.healths['claude'].failures
    assert results[0].exit_code == 1
    assert 'the daemon is stopping' in results[0].stderr


async def test_one_that_cannot_be_made(tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend whose key is missing fails the test with the name of the variable; nothing is asked of it."""
    monkeypatch.delenv('NO_SUCH_KEY', raising=False)
    config = configured(tmp_path, book)
    options = {'model': 'm', 'api_key_env': 'NO_SUCH_KEY'}
    backends = {**config.backends, 'real': Backend(kind='anthropic', options=options)}
    async with running(config_for(config.workspace, desks=config.desks, backends=backends)) as daemon:
        (result,) = (await as_json(daemon, 'backends', 'test', 'real', exit_code=1))['backends']
        assert result['error_type'] == 'ConfigurationError'
        assert 'the environment variable NO_SUCH_KEY is not set' in result['error']
        assert result['state'] == 'up'


async def test_a_real_kind_is_asked_for_text(tmp_path: Path, book: Book) -> None:
    """A kind that keeps no session answers in pieces, so that the first token is seen long before the whole."""
    config = configured(tmp_path, book)
    slow = Backend(kind='offline', options={'delay': '20ms', 'chunk_delay': '30ms'})
    backends = {**config.backends, 'slow': slow}
    async with running(config_for(config.workspace, desks=config.desks, backends=backends)) as daemon:
        (result,) = (await as_json(daemon, 'backends', 'test', 'slow'))['backends']
    assert 20 <= result['first_output_ms'] <= result['duration_ms'] - 30


async def test_real_sdks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the official SDKs both APIs answer a test in pieces, with usage and model, and the key is not shown."""
    monkeypatch.setenv('MY_KEY', KEY)
    with llmock_running() as server:
        urls = {'anthropic': mock_of(server, 'anthropic').url, 'openai_compatible': mock_of(server, 'openai').url}
        backends = {
            kind: Backend(kind=kind, options={'model': 'some-model', 'api_key_env': 'MY_KEY', 'base_url': url})
            for kind, url in urls.items()
        }
        async with running(config_for(tmp_path / 'ws', backends=backends)) as daemon:
            tested = await as_json(daemon, 'backends', 'test')
            result = await command(daemon, 'backends', '--json')
    results = {result['name']: result for result in tested['backends']}
    assert results.keys() == {'offline', *urls}
    for kind in urls:
        assert results[kind]['usage']['input_tokens'] > 0
        assert results[kind]['usage']['output_tokens'] > 0
        assert results[kind]['model'] == 'some-model'
        assert results[kind]['first_output_ms'] is not None
    assert KEY not in result.output + json.dumps(tested)


# -- out of use and back -----------------------------------------------------------------------------------------


async def test_a_failover_is_drilled(tmp_path: Path, book: Book) -> None:
    """With the preferred backend disabled the next one answers; enabled, it gets the next turn, and what it missed."""
    async with running(configured(tmp_path, book)) as daemon:
        with daemon.bus.subscribe(BackendDisabled, BackendEnabled, TurnFinished, ModelCallFailed, WentDown) as events:
            await answered(daemon, 'main', 'a')
            shown = await output(daemon, 'backends', 'disable', 'claude', '--reason', 'a drill')
            assert shown == 'claude: disabled for every desk; calls that run go on to their end\n'
            await answered(daemon, 'main', 'b')
            status = (await as_json(daemon, 'status'))['desks'][0]
            assert (status['last_backend'], status['last_preferred']) == ('gpt', False)
            assert await output(daemon, 'backends', 'enable', 'claude') == 'claude: enabled\n'
            await answered(daemon, 'main', 'c')
            status = (await as_json(daemon, 'status'))['desks'][0]
            assert (status['last_backend'], status['last_preferred']) == ('claude', True)
            seen = told(events, Event)
    assert [type(event).__name__ for event in seen] == [
        'TurnFinished', 'BackendDisabled', 'TurnFinished', 'BackendEnabled', 'TurnFinished',
    ]  # fmt: skip
    finished = [event for event in seen if isinstance(event, TurnFinished)]
    assert [(event.backend, event.preferred) for event in finished] == [
        ('claude', True),
        ('gpt', False),
        ('claude', True),
    ]
    disabled, enabled = seen[1], seen[3]
    assert isinstance(disabled, BackendDisabled)
    assert (disabled.backend, disabled.by, disabled.reason) == ('claude', 'anil', 'a drill')
    assert disabled.hint == '`trading-agent backends enable claude` takes it into use again'
    assert isinstance(enabled, BackendEnabled)
    assert (enabled.backend, enabled.by) == ('claude', 'anil')
    last = book.turns_of('claude')[-1]
    assert (len(last.exchanges), last.exchanges_seen) == (2, 1)


async def test_it_holds_over_a_restart(tmp_path: Path, book: Book) -> None:
    """What is disabled is in a file for the owner alone, with who, when and why, and holds after a restart."""
    async with running(configured(tmp_path, book)) as daemon:
        await output(daemon, 'backends', 'disable', 'claude', '--reason', 'a drill')
    path = tmp_path / 'ws' / FILE
    assert json.loads(path.read_bytes()) == {
        'version': 1,
        'backends': {'claude': {'at': '2026-03-10T04:30:00Z', 'by': 'anil', 'reason': 'a drill'}},
    }
    assert path.stat().st_mode & 0o777 == 0o600
    async with running(configured(tmp_path, book)) as daemon:
        await answered(daemon, 'main', 'a')
        status = await output(daemon, 'status')
        (claude, *_) = (await as_json(daemon, 'backends'))['backends']
        await output(daemon, 'backends', 'enable', 'claude')
        assert json.loads(path.read_bytes())['backends'] == {}
    assert {name for name, _ in book.asked} == {'gpt'}
    assert 'claude disabled, gpt' in status
    assert 'ago by gpt' in status
    assert (
        'backend claude: it is disabled by anil at 10:00 IST on 10 Mar: a drill '
        '(`trading-agent backends enable claude`)\n'
    ) in status
    assert claude['disabled'] == {'at': '2026-03-10T04:30:00Z', 'by': 'anil', 'reason': 'a drill'}
    async with running(configured(tmp_path, book)) as daemon:
        await answered(daemon, 'main', 'b')
    assert len(book.turns_of('claude')) == 1


async def test_a_running_call_ends_normally(tmp_path: Path, book: Book) -> None:
    """A turn that runs on the backend that is disabled is answered by it; the one behind it is not."""
    async with running(configured(tmp_path, book)) as daemon:
        gate = book.gates['claude'] = anyio.Event()
        await send(daemon, 'main', 'a')
        await until(lambda: book.asked, 'the turn runs')
        await send(daemon, 'main', 'b')
        await output(daemon, 'backends', 'disable', 'claude')
        gate.set()
        await until(lambda: main_of(daemon).queue.closing('b'), 'both are closed')
        assert [exchange.backend_name for exchange in main_of(daemon).router.exchanges] == ['claude', 'gpt']


async def test_the_only_backend(tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disabling a desk's last backend warns that its triggers wait, and they do; enabled, they are run at once."""
    monkeypatch.setattr(desk_loop, 'TRY_AGAIN_SECONDS', (600.0, 600.0))
    async with running(configured(tmp_path, book)) as daemon:
        first = await command(daemon, 'backends', 'disable', 'gpt')
        assert (first.exit_code, first.stderr) == (0, '')
        with daemon.bus.subscribe(BackendDisabled) as events:
            second = await command(daemon, 'backends', 'disable', 'claude')
            (event,) = told(events, BackendDisabled)
        assert second.exit_code == 0
        assert second.stderr == ('warning: main has no other backend in use: its triggers wait until one is enabled\n')
        assert 'until then the triggers of main wait' in event.hint
        await send(daemon, 'main', 'a')
        await until(lambda: main_of(daemon).trouble, 'no backend can answer')
        assert 'gpt: it is disabled by anil' in main_of(daemon).trouble
        assert '`trading-agent backends enable gpt`' in main_of(daemon).trouble
        assert main_of(daemon).queue.depth == 1
        shown = await as_json(daemon, 'backends', 'enable', 'gpt')
        assert (shown['changed'], shown['state'], shown['desks_waiting']) == (True, 'up', [])
        closing = await until(lambda: main_of(daemon).queue.closing('a'), 'it is closed')
        assert closing.outcome == 'answered'
    assert {name for name, _ in book.asked} == {'gpt'}


async def test_said_again(tmp_path: Path, book: Book) -> None:
    """Disabled again without a reason a backend keeps the one that was given; enabling what is in use does nothing."""
    async with running(configured(tmp_path, book)) as daemon:
        assert await output(daemon, 'backends', 'enable', 'claude') == 'claude: nothing to do, it is in use\n'
        assert (await as_json(daemon, 'backends', 'disable', 'claude', '--reason', 'a drill'))['changed']
        again = await as_json(daemon, 'backends', 'disable', 'claude')
        assert (again['changed'], again['disabled']['reason']) == (False, 'a drill')
        other = await as_json(daemon, 'backends', 'disable', 'claude', '--reason', 'another')
        assert other['disabled']['reason'] == 'another'
        assert other['state'] == 'disabled'


async def test_a_disabled_one_can_be_tested(tmp_path: Path, book: Book) -> None:
    """A test shows whether a disabled backend would answer, and leaves it disabled."""
    async with running(configured(tmp_path, book)) as daemon:
        await output(daemon, 'backends', 'disable', 'claude')
        assert (await output(daemon, 'backends', 'test', 'claude')).rstrip().endswith(', it stays disabled')
        await answered(daemon, 'main', 'a')
    assert [turn.text for turn in book.turns_of('claude')] == [backend_trial.TEXT]


async def test_one_that_is_no_longer_configured(tmp_path: Path, book: Book) -> None:
    """What is disabled stays so when it leaves the configuration and comes back, and can be enabled meanwhile."""
    whole = configured(tmp_path, book)
    backends = {name: backend for name, backend in whole.backends.items() if name != 'claude'}
    without = config_for(whole.workspace, desks=[Desk(name='main', backends=['gpt'])], backends=backends)
    async with running(whole) as daemon:
        await output(daemon, 'backends', 'disable', 'claude')
        await daemon.configuration.apply(without)
        await daemon.configuration.apply(whole)
        await answered(daemon, 'main', 'a')
        assert book.turns_of('claude') == []
    async with running(without) as daemon:
        assert 'claude' not in await output(daemon, 'backends')
        refused = await command(daemon, 'backends', 'test', 'claude')
        assert (refused.exit_code, "the backend 'claude' is not configured" in refused.stderr) == (1, True)
        await output(daemon, 'backends', 'enable', 'claude')
        await daemon.configuration.apply(whole)
        await answered(daemon, 'main', 'b')
    assert len(book.turns_of('claude')) == 1


# -- when its file is not well -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'{"version": 1, "backends": {"claude"',
        b'{"version": 1, "backends": ["claude"]}',
        b'{"version": 1, "backends": {"claude": {"at": "2026-03-10T04:30:00", "by": "x", "reason": ""}}}',
        b'\xff\xfe',
        b'[' * 200_000,
    ],
)
async def test_a_damaged_file(tmp_path: Path, book: Book, content: bytes) -> None:
    """A file that cannot be understood is moved aside and told; every backend is in use, and can be disabled again."""
    path = tmp_path / 'ws' / FILE
    path.parent.mkdir()
    path.write_bytes(content)
    async with running(configured(tmp_path, book)) as daemon:
        with daemon.bus.subscribe(StoreDamaged, since='oldest') as events:
            (event,) = told(events, StoreDamaged)
        assert event.path == str(path)
        (aside,) = path.parent.glob(f'{FILE}.damaged-*')
        assert aside.name in event.hint
        assert aside.read_bytes() == content
        await answered(daemon, 'main', 'a')
        assert len(book.turns_of('claude')) == 1
        await output(daemon, 'backends', 'disable', 'claude')
        assert json.loads(path.read_bytes())['backends'].keys() == {'claude'}


async def test_a_file_of_a_newer_version(tmp_path: Path, book: Book) -> None:
    """A file that a newer version wrote is told and never overwritten: disabling is refused."""
    path = tmp_path / 'ws' / FILE
    path.parent.mkdir()
    path.write_bytes(content := b'{"version": 2, "out_of_use": ["claude"]}\n')
    async with running(configured(tmp_path, book)) as daemon:
        with daemon.bus.subscribe(StoreDamaged, since='oldest') as events:
            (event,) = told(events, StoreDamaged)
        assert 'has format 2' in event.error
        result = await command(daemon, 'backends', 'disable', 'gpt')
        assert result.exit_code == 1
        assert 'install the newer version' in result.stderr
        assert not daemon.healths['gpt'].disabled
    assert path.read_bytes() == content


async def test_what_cannot_be_written_does_not_hold(
    tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk refuses, disabling and enabling are refused, nothing of them holds, and nothing is told."""

    def full(path: Path, _: bytes) -> None:
        raise StorageError('replace', path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    async with running(configured(tmp_path, book)) as daemon:
        await output(daemon, 'backends', 'disable', 'claude')
        with daemon.bus.subscribe(BackendDisabled, BackendEnabled) as events:
            monkeypatch.setattr(files, 'replace', full)
            for what, name in (('disable', 'gpt'), ('enable', 'claude')):
                result = await command(daemon, 'backends', what, name)
                assert result.exit_code == 1
                assert 'free some space' in result.stderr
            assert told(events, Event) == []
        monkeypatch.undo()
        assert {name for name, health in daemon.healths.items() if health.disabled} == {'claude'}


async def test_a_file_that_cannot_be_read(tmp_path: Path, book: Book) -> None:
    """A failing disk is told, the daemon starts all the same, and what is there is not overwritten."""
    (tmp_path / 'ws' / FILE).mkdir(parents=True)
    async with running(configured(tmp_path, book)) as daemon:
        with daemon.bus.subscribe(WriteFailed, since='oldest') as events:
            (event,) = told(events, WriteFailed)
        assert (event.operation, event.path) == ('read', str(tmp_path / 'ws' / FILE))
        await answered(daemon, 'main', 'a')
        assert (await command(daemon, 'backends', 'disable', 'gpt')).exit_code == 1
        assert not daemon.healths['gpt'].disabled


# -- what other commands tell of backends ---------------------------------------------------------------------------


async def test_a_running_turns_tokens(tmp_path: Path, book: Book) -> None:
    """`status` tells the tokens that the running turn has counted so far, of the backend that is being asked."""
    async with running(configured(tmp_path, book)) as daemon:
        book.failing['claude'] = BackendError('dead')
        gate = book.gates['gpt'] = anyio.Event()
        await send(daemon, 'main', 'a')

        def turn() -> bool:
            running_turn = main_of(daemon).turn
            return running_turn is not None and running_turn.usage == Usage(input_tokens=100)

        await until(turn, 'it has counted some')
        status = (await as_json(daemon, 'status'))['desks'][0]['turn']
        assert (status['backend'], status['usage']) == ('gpt', {'input_tokens': 100})
        assert 'gpt 0s, 100 tokens' in await output(daemon, 'status')
        gate.set()
        await until(lambda: main_of(daemon).queue.closing('a'), 'it is closed')
        assert main_of(daemon).turn is None


async def test_the_last_answer_is_known_after_a_reload(tmp_path: Path, book: Book) -> None:
    """Who gave the last answer stays known when the configuration changes, and was preferred as it was then."""
    config = configured(tmp_path, book)
    async with running(config) as daemon:
        before = (await as_json(daemon, 'status'))['desks'][0]
        assert (before['last_backend'], before['last_preferred'], before['last_turn_at']) == (None, None, None)
        await answered(daemon, 'main', 'a')
        turned = config_for(config.workspace, desks=[Desk(name='main', backends=['gpt'])], backends=config.backends)
        await daemon.configuration.apply(turned)
        await until(lambda: [backend.name for backend in main_of(daemon).status().backends] == ['gpt'], 'it changed')
        after = (await as_json(daemon, 'status'))['desks'][0]
        assert (after['last_backend'], after['last_preferred']) == ('claude', True)
        assert after['last_turn_at'] is not None


async def test_why_names_the_model_and_what_it_saw(tmp_path: Path, book: Book) -> None:
    """`why` names backend, model and the digests of AGENTS.md and Memory.md: short for people, whole in JSON."""
    async with running(configured(tmp_path, book)) as daemon:
        await answered(daemon, 'main', 'a')
        folder = main_of(daemon).folder
        (folder / 'AGENTS.md').write_text('Trade small.\n')
        (folder / 'Memory.md').write_text('- never hold overnight\n')
        book.failing['claude'] = BackendError('dead')
        await answered(daemon, 'main', 'b')
        plain = await output(daemon, 'why', 'main', 'a')
        shown = await output(daemon, 'why', 'main', 'b')
        story = await as_json(daemon, 'why', 'main', 'b')
    instructions = '302d13ca162f7b74b0c495d7a62505fa'  # b2sum -l 128
    memory = 'f7ab3f0f309ba1459135b3af331a6b9b'
    assert (story['backend'], story['model']) == ('gpt', 'gpt-2026')
    (turn,) = story['turns']
    assert turn == {
        'attempt': 1,
        'session_id': '2026-03-10-1',
        'backend': 'gpt',
        'model': 'gpt-2026',
        'instructions': instructions,
        'memory': memory,
        'tools': turn['tools'],
    }
    assert '  model       gpt-2026\n' in shown
    assert f'  saw         AGENTS.md {instructions[:12]}, Memory.md {memory[:12]}' in shown
    assert instructions not in shown
    assert '  model       claude-2026\n' in plain
    assert 'AGENTS.md' not in plain


@pytest.mark.parametrize(('kind', 'package'), [('anthropic', 'anthropic'), ('openai_compatible', 'openai')])
def test_check_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    """`check` names the variable, the credential and the package that a desk's backend lacks, and never a value."""
    monkeypatch.setattr(unit, 'UNIT', tmp_path / 'none')
    for name in ('MY_KEY', 'CREDENTIALS_DIRECTORY'):
        monkeypatch.delenv(name, raising=False)

    def checked(key: str) -> tuple[int, str]:
        file = tmp_path / 'c.toml'
        desk = '[[desks]]\nname = "main"\nbackends = ["real"]\n'
        file.write_text(f'[backends.real]\nkind = "{kind}"\nmodel = "m"\n{key}\n{desk}')
        result = call('--config', str(file), 'check')
        return result.exit_code, result.output

    code, shown = checked('api_key_env = "MY_KEY"')
    assert (code, 'backends.real.api_key_env: the environment variable MY_KEY is not set' in shown) == (78, True)
    code, shown = checked('api_key_credential = "broker-key"')
    assert (code, 'backends.real.api_key_credential: there is no credential broker-key' in shown) == (78, True)
    monkeypatch.setenv('MY_KEY', 'sk-a-secret')
    assert checked('api_key_env = "MY_KEY"')[0] == 0
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *more: None if name == package else real(name, *more))
    code, shown = checked('api_key_env = "MY_KEY"')
    assert (code, f"pip install 'trading-agent[{package}]'" in shown) == (78, True)
    assert 'sk-a-secret' not in shown
