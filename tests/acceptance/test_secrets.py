"""What must never be seen: a key anywhere, and in the log what was said, unless that is asked for."""

import json
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
from embedded_desk import EmbeddedDesk, be_impatient
from model_apis import Asked, Fault, ModelApis, Moment, model_apis
from process import Process, Start

from trading_agent.config import Backend
from trading_agent.daemon.backends import make_runner
from trading_agent.errors import TradingAgentError
from trading_agent.events import ModelCallFailed, Stamped
from trading_agent.logs import encode_record, log_record
from trading_agent.memory.exchange import Exchange
from trading_agent.routing.turn_runner import Turn

KEYS = {'ENV_KEY': 'sk-env-51c07d9fe2ab4406', 'PLUGIN_TOKEN': 'token-of-the-plug-in-70b2e9'}
CREDENTIAL = 'sk-credential-88aa1f07c3d94e6b'
INSTRUCTIONS = 'Xanthic rule: answer in one line, and sell nothing below its price of yesterday.'
MEMORY = 'Yttrium lesson: the desk lost money on options that were held overnight.'
PROMPT = (
    'Quixotic question: should nine thousand shares of Infosys be bought before the others hear of it? Zephyr '
    'follows in\nits second line, with "quotes" and ₹ 500 crore, and ends with a vermilion word'
)
ANSWER = 'Jackdaws love my big sphinx of quartz, and the desk holds a hundred shares of it.'
REVIEW = json.dumps({'summary': f'It was said: {ANSWER}', 'memory': f'{MEMORY} And: {PROMPT}', 'reasons': PROMPT})
NO_SKILLS = '{"actions": []}'
CONTENT = ('quixotic', 'nine thousand', 'zephyr', 'vermilion', 'jackdaws', 'sphinx', 'xanthic', 'yttrium')
"""Words of what was said, in small letters."""

KINDS = {
    'anthropic': ('anthropic', 'api_key_env', 'ENV_KEY'),
    'openai': ('openai_compatible', 'api_key_credential', 'gpt'),
}
"""Of each API the kind of backend that speaks it, and where its key is."""

FAILURES = [*(f'status-{status}' for status in (400, 401, 403, 404, 422, 429, 500, 529)), 'error-529', 'error-0']
WAYS = ('own-error', 'foreign-error', 'nonsense')
SOME_FAILURES = ('status-400', 'status-401', 'status-429', 'error-529')


def echoes(asked: Asked) -> list[str]:
    """Returns what a careless server says of a request: the key, and more or less of what was sent."""
    key = asked.headers.get('authorization', '')
    last = asked.said[-1]
    middle = last[len(last) // 2 :]
    return [
        f'invalid key {key}',
        f'cannot parse: {last}',
        f'near {middle!r}',
        f'in {json.dumps(asked.said)} under {asked.system}, header {json.dumps(asked.headers)}',
        f'unexpected {json.dumps(middle)}',
        f'the answer before was: {" ".join(asked.said[1:2])}',
        f'system: {asked.system[-60:]}',
    ]


class Careless:
    """A server that answers a first message, and reviews, and then repeats in its complaints what it was sent.

    The model's name says how it fails: a kind and a status.
    """

    def __init__(self) -> None:
        self._complaints = 0

    def __call__(self, asked: Asked) -> str | Fault:
        if asked.wants_json:
            return NO_SKILLS if '"actions"' in asked.system else REVIEW
        if len(asked.said) == 1:
            return ANSWER
        kind, _, status = asked.body['model'].partition('-')
        said = echoes(asked)
        self._complaints += 1
        moment: Moment = 'middle' if kind == 'error' else 'first'
        return Fault(kind, moment, int(status), message=said[self._complaints % len(said)])


@pytest.fixture
def careless() -> Iterator[ModelApis]:
    """The server."""
    with model_apis(Careless()) as apis:
        yield apis


def require_discreet(text: str, place: str, words: tuple[str, ...] = CONTENT) -> None:
    """Sees to it that a text shows no key, and nothing of what was said."""
    for secret in (*KEYS.values(), CREDENTIAL, *words):
        shown = [line for line in text.split('\n') if secret in line or secret in line.lower()]
        assert shown == [], f'{secret!r} in {place}'


def log_of(desk: EmbeddedDesk) -> str:
    """Returns what the log says of all that a desk told, where it does not show what was said."""
    lines = [encode_record(log_record(Stamped(0, desk.clock.now(), event), 'run')) for event in desk.events]
    return b'\n'.join(lines).decode()


@pytest.fixture
def model(careless: ModelApis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Backend]:
    """Returns a backend on an API of the careless server, by how it fails."""
    be_impatient(monkeypatch)
    (tmp_path / 'gpt').write_text(CREDENTIAL)
    monkeypatch.setenv('CREDENTIALS_DIRECTORY', str(tmp_path))
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)

    def made(api: str, failure: str) -> Backend:
        kind, named, name = KINDS[api]
        return Backend(kind=kind, options={'model': failure, 'base_url': careless.url(api), named: name})

    return made


@pytest.mark.parametrize('api', list(KINDS))
@pytest.mark.parametrize('failure', FAILURES)
async def test_no_failure_shows_what_it_knows(
    tmp_path: Path, model: Callable[[str, str], Backend], api: str, failure: str
) -> None:
    """However much a server repeats, the log shows neither the key nor what was said, and still what failed."""
    stand_in = Backend(kind='drill_backends:counting', options={'asked': []})
    async with EmbeddedDesk(tmp_path, {'model': model(api, failure), 'stand-in': stand_in}) as desk:
        (desk.files.folder / 'AGENTS.md').write_text(INSTRUCTIONS)
        (desk.files.folder / 'Memory.md').write_text(MEMORY)
        await desk.send(['the first'])
        for number in range(7):
            await desk.cooled_down()
            await desk.send([f'{PROMPT} {number}'])
    failures = desk.told(ModelCallFailed)
    assert len(failures) >= 7
    require_discreet(log_of(desk), 'the log')
    assert all(' answered ' in event.error for event in failures)
    for path in desk.files.folder.rglob('*'):
        if path.is_file():
            require_discreet(path.read_text(), str(path), ())


@pytest.mark.parametrize('api', list(KINDS))
async def test_no_error_holds_a_key(tmp_path: Path, model: Callable[[str, str], Backend], api: str) -> None:
    """What a failure is printed as, its traceback and its fields included, shows no key; nor do runner and settings."""
    for failure in FAILURES:
        backend = model(api, failure)
        runner = make_runner('model', backend, 'config', tmp_path)
        exchange = Exchange('the first', ANSWER, 'model', '2026-10-19T04:00:00Z')
        turn = Turn(
            desk='main', session_id='2026-10-19-1', trading_date=date(2026, 10, 19), text=PROMPT, exchanges=[exchange]
        )
        for number in range(7):
            with pytest.raises(TradingAgentError) as raised:
                [event async for event in runner.run(turn)]
            error = raised.value
            printed = [*traceback.format_exception(error), repr(error), error.in_words, repr(vars(error))]
            require_discreet('\n'.join(printed), f'{failure} {number}', ())
        require_discreet(f'{runner!r} {backend!r}', 'the runner', ())


# -- the real process ------------------------------------------------------------------------------------------


def config_of(apis: ModelApis, log_content: str) -> str:
    """Returns a configuration with a desk for each way to fail, on a backend of its own."""
    tables = [f'log_level = "debug"\nlog_content = {log_content}']
    backends = [
        (f'{api}-{failure}', kind, f'model = "{failure}"\n{named} = "{name}"\nbase_url = "{apis.url(api)}"')
        for api, (kind, named, name) in KINDS.items()
        for failure in SOME_FAILURES
    ]
    own = 'secret_backends:indiscreet'
    backends += [(way, own, f'token_env = "PLUGIN_TOKEN"\nway = "{way}"') for way in WAYS]
    for name, kind, options in backends:
        tables += [
            f'[backends.{name}]\nkind = "{kind}"\n{options}',
            f'[[desks]]\nname = "{name}"\nbackends = ["{name}"]',
        ]
    return '\n'.join(tables)


def started(start: Start, folder: Path, apis: ModelApis, log_content: str) -> Process:
    """Starts a daemon with keys in its environment and in a credential."""
    (folder / 'credentials').mkdir()
    (folder / 'credentials' / 'gpt').write_text(CREDENTIAL + '\n')
    ambient = {'ANTHROPIC_LOG': 'debug', 'OPENAI_LOG': 'debug', 'PYTHONPATH': str(Path(__file__).parent)}
    environ = {**KEYS, **ambient, 'CREDENTIALS_DIRECTORY': str(folder / 'credentials')}
    process = start(config_of(apis, log_content), environ=environ).ready()
    for desk in (process.workspace / 'desks').iterdir():
        (desk / 'AGENTS.md').write_text(INSTRUCTIONS)
        (desk / 'Memory.md').write_text(MEMORY)
    return process


def seen_of(process: Process) -> dict[str, str]:
    """Returns what can be seen of a daemon: what its socket and its command line say, and each of its files."""
    desk = 'openai-error-529'
    seen = {}
    for arguments in (
        ['status'],
        ['backends'],
        ['sessions', desk],
        ['show', desk],
        ['memory', desk],
        ['why', 'p1', desk],
    ):
        done = process.cli(*arguments, '--json')
        seen[' '.join(arguments)] = done.stdout + done.stderr
    for path in process.workspace.rglob('*'):
        if path.is_file():
            seen[str(path.relative_to(process.workspace))] = path.read_bytes().decode(errors='replace')
    return seen


@pytest.mark.parametrize('log_content', ['false', 'true'])
def test_nothing_secret_is_seen(start: Start, tmp_path: Path, careless: ModelApis, log_content: str) -> None:
    """Whatever failing backends repeat, a key is nowhere, and what was said is in the log only where it may be."""
    process = started(start, tmp_path, careless, log_content)
    models = [f'{api}-{failure}' for api in KINDS for failure in SOME_FAILURES]
    for desk in models:
        process.send('the first', desk, id='first')
    for desk in models:
        process.wait_for('turn_finished', desk=desk, trigger_id='first')
    for desk in (*models, *WAYS):
        for number in range(7):
            process.send(f'{PROMPT} {number}', desk, id=f'p{number}')
    for desk in ('anthropic-status-400', 'openai-status-400'):
        process.wait_for('trigger_closed', desk=desk, outcome='failed', count=7)
        assert process.cli('rollover', desk).returncode == 0
    process.wait_for('turn_finished', desk='nonsense', count=7)
    assert process.cli('rollover', 'nonsense').returncode == 0
    for desk in (*models, *WAYS):
        process.wait_for('model_call_failed', desk=desk)
    seen = seen_of(process)
    assert process.stop() == 0
    log = b''.join([*process.raw, *process.odd]).decode(errors='replace')
    for place, text in seen.items():
        require_discreet(text, place, ())
    require_discreet(log, 'the log', CONTENT if log_content == 'false' else ())
    assert any('quixotic' in text.lower() for text in seen.values())
    assert ('Quixotic' in log) == (log_content == 'true')


# -- other people's backends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('way', 'told'),
    [
        ('own-error', 'token=…: while sending…'),
        ('foreign-error', "KeyError: 'token=…: while sending…"),
        ('nonsense', 'no JSON object:…'),
    ],
)
async def test_a_plug_in_that_tells_all(tmp_path: Path, model: object, way: str, told: str) -> None:
    """What a plug-in puts into its error is told without its token and without what was said."""
    own = Backend(kind='secret_backends:indiscreet', options={'token_env': 'PLUGIN_TOKEN', 'way': way})
    stand_in = Backend(kind='drill_backends:counting', options={'asked': []})
    async with EmbeddedDesk(tmp_path, {'own': own, 'stand-in': stand_in}) as desk:
        (desk.files.folder / 'Memory.md').write_text(MEMORY)
        await desk.send([PROMPT])
        await desk.cooled_down()
        await desk.next_day()
    failures = [event for event in desk.told(ModelCallFailed) if event.backend == 'own']
    require_discreet(log_of(desk), 'the log')
    assert told in failures[0].error
