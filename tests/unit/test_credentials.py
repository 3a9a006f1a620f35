"""Secrets are named in the configuration, found where they are held, and shown by nothing."""

import io
import json
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest

from trading_agent import config as config_module
from trading_agent.config import Backend, Config, Desk
from trading_agent.credentials import Secret, secrets_in, with_secrets, without_secrets
from trading_agent.daemon.backends import make_runner
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.operations import Operations
from trading_agent.errors import BackendError, ConfigurationError, TurnRefused
from trading_agent.logs import Log
from trading_agent.routing.turn_runner import Turn, TurnAnswered, TurnEvent
from trading_agent.trigger import Trigger

VALUE = 'sk-proj-Q7"\\x9-never-shown'
OTHER = VALUE + '-and-longer'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of credentials as systemd makes one."""
    folder = tmp_path / 'credentials'
    folder.mkdir()
    (folder / 'openai').write_text(f'{VALUE}\n')
    (folder / 'windows').write_bytes(f'{VALUE}\r\n'.encode())
    (folder / 'empty').write_text('\n')
    (folder / 'binary').write_bytes(b'\xff\xfe' + VALUE.encode())
    (tmp_path / 'outside').write_text(VALUE)
    return folder


# -- where they are held -----------------------------------------------------------------------------------------


def test_a_variable(folder: Path) -> None:
    """`KEY_env` gives KEY from the environment, as it stands there, beside the other options."""
    options = {'api_key_env': 'OPENAI_API_KEY', 'model': 'm', 'limit': 3, '_env': 'x', 'use_env': True}
    found = with_secrets(options, 'backends.gpt', {'OPENAI_API_KEY': VALUE})
    assert found == {**options, 'api_key': VALUE}
    assert 'api_key' not in options


def test_a_credential(folder: Path) -> None:
    """`KEY_credential` gives KEY from systemd's folder, without the newline at its end."""
    environ = {'CREDENTIALS_DIRECTORY': str(folder)}
    found = with_secrets({'api_key_credential': 'openai', 'other_credential': 'windows'}, 'backends.gpt', environ)
    assert (found['api_key'], found['other']) == (VALUE, VALUE)


@pytest.mark.parametrize(
    ('options', 'named', 'hint'),
    [
        ({'api_key_env': 'NO_SUCH_KEY'}, 'the environment variable NO_SUCH_KEY is not set', 'where the daemon is'),
        ({'api_key_env': 'EMPTY_KEY'}, 'the environment variable EMPTY_KEY is not set', 'where the daemon is'),
        ({'api_key_credential': 'anthropic'}, 'the credential anthropic cannot be read', 'LoadCredential='),
        ({'api_key_credential': 'empty'}, 'the credential empty is empty', 'fill its file'),
        ({'api_key_credential': 'binary'}, 'the credential binary cannot be read', 'LoadCredential='),
        ({'api_key_credential': '../outside'}, 'there is no credential ../outside', 'LoadCredential='),
        ({'api_key_credential': '..'}, 'there is no credential ..', 'LoadCredential='),
        ({'api_key_credential': ''}, 'there is no credential ', 'LoadCredential='),
        ({'api_key_credential': 'nul\0'}, 'the credential nul\0 cannot be read', 'LoadCredential='),
    ],
)
def test_a_missing_one_is_named(folder: Path, options: dict[str, Any], named: str, hint: str) -> None:
    """A secret that is missing is told with the key that names it, its name and where to put it."""
    environ = {'CREDENTIALS_DIRECTORY': str(folder), 'EMPTY_KEY': ''}
    with pytest.raises(ConfigurationError) as caught:
        with_secrets(options, '/etc/x.toml: backends.gpt', environ)
    (problem,) = caught.value.problems
    assert problem.where == f'/etc/x.toml: backends.gpt.{next(iter(options))}'
    assert problem.what == named
    assert hint in problem.hint
    assert VALUE not in str(caught.value)


def test_without_systemd() -> None:
    """Where systemd gave no credentials a named one is missing, and every missing one is told."""
    with pytest.raises(ConfigurationError) as caught:
        with_secrets({'a_credential': 'openai', 'b_env': 'NOT_THERE', 'c_env': 'THERE'}, 'p', {'THERE': VALUE})
    assert [problem.where for problem in caught.value.problems] == ['p.a_credential', 'p.b_env']


def test_one_that_is_given_twice(folder: Path) -> None:
    """A secret from two places, or in the file itself beside its name, is a mistake."""
    environ = {'CREDENTIALS_DIRECTORY': str(folder), 'KEY': OTHER}
    for second in ({'api_key_credential': 'openai'}, {'api_key': VALUE}):
        with pytest.raises(ConfigurationError, match='api_key is given twice') as caught:
            with_secrets({'api_key_env': 'KEY', **second}, 'p', environ)
        assert VALUE not in str(caught.value)


@pytest.mark.parametrize('key', ['api_key_env', 'api_key_credential'])
@pytest.mark.parametrize('value', ['sk-ant-api03-' + 'abcDEF0123' * 8, 'ghp_16C7e42F292c6912E7', 'a' * 64])
def test_a_secret_in_the_place_of_its_name(key: str, value: str) -> None:
    """Who writes the secret itself where its name belongs does not find it in an error."""
    with pytest.raises(ConfigurationError) as caught:
        with_secrets({key: value}, 'p', {'CREDENTIALS_DIRECTORY': '/'})
    assert value not in str(caught.value)
    assert f'p.{key}' in str(caught.value)
    assert 'looks like a secret' in str(caught.value)


# -- nothing shows them ------------------------------------------------------------------------------------------


def test_shown_as_a_secret() -> None:
    """Whatever shows an object for people shows that there is a secret; as a text it is the text."""
    options = with_secrets({'api_key_env': 'KEY'}, 'p', {'KEY': VALUE})
    assert VALUE not in repr(options)
    assert f'{options!r}' == "{'api_key_env': 'KEY', 'api_key': Secret('…')}"
    assert 'Bearer ' + options['api_key'] == f'Bearer {VALUE}'
    assert isinstance(options['api_key'], Secret)


def test_taken_out_of_a_text() -> None:
    """Every secret is taken out, the longer one first where one is a part of another; very short ones are none."""
    options = with_secrets(
        {'a_env': 'A', 'b_env': 'B', 'c_env': 'C', 'd_env': 'D'}, 'p', {'A': VALUE, 'B': OTHER, 'C': 'x', 'D': 'y'}
    )
    assert secrets_in(options, {}) == {VALUE, OTHER, 'x', 'y'}
    assert secrets_in({'a_env': 'A', 'z_env': 'Z'}, {'A': VALUE}) == {VALUE}
    assert without_secrets(f'x {OTHER}, {VALUE} and {VALUE}y', secrets_in(options, {})) == 'x …, … and …y'


class Telltale:
    """A backend that tells its secret to whoever listens.

    Args:
        options: How it tells it, and the secret.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._key = options['api_key']

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        logging.getLogger('telltale').warning('asking with %s', self._key)
        match self._options['how']:
            case 'error':
                raise RuntimeError(f'401 for {self._key}')
            case 'backend error':
                raise BackendError('401', f'is {self._key} still valid?')
            case 'refused':
                raise TurnRefused(f'{self._key} may not ask this')
            case 'logged error':
                try:
                    raise ValueError(f'a header {self._key}')
                except ValueError:
                    logging.getLogger('telltale').exception('it failed')
                raise RuntimeError('it failed')
            case _:
                yield TurnAnswered('noted')


def telltale(_: str, options: dict[str, Any]) -> Telltale:
    """Makes a backend of this kind."""
    if options['how'] == 'at once':
        raise RuntimeError(f'{options["api_key"]} is refused')
    if options['how'] == 'exit':
        raise SystemExit(f'{options["api_key"]} is refused')
    return Telltale(options)


KIND = 'test_credentials:telltale'


@pytest.mark.parametrize('how', ['at once', 'exit'])
def test_a_plug_in_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A plug-in's error at its making is told without its secret, in the error and in what hangs on it."""
    monkeypatch.setenv('KEY', VALUE)
    with pytest.raises(ConfigurationError, match='… is refused') as caught:
        make_runner('gpt', Backend(kind=KIND, options={'how': how, 'api_key_env': 'KEY'}), 'x.toml')
    shown = ''.join(traceback.format_exception(caught.value))
    assert VALUE not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize('how', ['error', 'backend error', 'refused'])
async def test_a_plug_in_that_fails(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An error of a running plug-in keeps its kind where that matters, and loses its secret."""
    monkeypatch.setenv('KEY', VALUE)
    runner = make_runner('gpt', Backend(kind=KIND, options={'how': how, 'api_key_env': 'KEY'}), 'x.toml')
    turn = Turn(desk='main', session_id='2026-03-10-1', trading_date=date(2026, 3, 10), text='hello')
    with pytest.raises((BackendError, TurnRefused)) as caught:
        async for _ in runner.run(turn):
            pass
    assert isinstance(caught.value, TurnRefused if how == 'refused' else BackendError)
    assert VALUE not in ''.join(traceback.format_exception(caught.value)) + caught.value.hint
    assert '…' in str(caught.value) + caught.value.hint


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Lets a test capture what libraries log, and gives it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)


@pytest.mark.usefixtures('root_logger')
@pytest.mark.parametrize('how', ['answers', 'error', 'backend error', 'refused', 'logged error'])
async def test_a_whole_daemon(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    how: str,
) -> None:
    """In the log of a daemon, in its status, its files and its events there is no secret, whatever a plug-in does."""
    monkeypatch.setenv('KEY', VALUE)
    monkeypatch.setenv('CREDENTIALS_DIRECTORY', str(folder))
    path = tmp_path / 'trading-agent.toml'
    path.write_text(f"""
        log_content = true
        log_level = "debug"
        [backends.gpt]
        kind = "{KIND}"
        how = "{how}"
        api_key_env = "KEY"
        other_credential = "openai"
        [[desks]]
        name = "main"
        backends = ["gpt"]
    """)
    stream = io.BytesIO()
    config = config_module.load(path, tmp_path / 'ws', {})
    daemon = Daemon(config, faces=False, environ={}, read_config=lambda: config_module.load(path, tmp_path / 'ws', {}))
    log = Log(daemon.run_id, config.log_level, log_content=True, stream=stream, journald=False)
    log.capture_logging()
    daemon.on_config = log.configure
    async with anyio.create_task_group() as tasks:
        await tasks.start(log.follow, daemon.bus)
        async with daemon:
            await daemon.bus.send(Trigger('hello', 'main', id='t'))
            with anyio.fail_after(30):
                while b'"model_call_failed"' not in (done := stream.getvalue()) and b'"trigger_closed"' not in done:  # noqa: ASYNC110
                    await anyio.sleep(0.005)
            status = repr(Operations(daemon).status())
            path.write_text(path.read_text().replace(f'"{how}"', '"at once"'))
            with pytest.raises(ConfigurationError) as caught:
                await daemon.configuration.reload()
            with daemon.bus.subscribe(since='oldest') as events:
                told = repr(events.ready(1 << 20))
        tasks.cancel_scope.cancel()
    written = stream.getvalue().decode()
    assert 'asking with …' in written
    assert 'config_rejected' in written
    if how == 'logged error':
        assert 'a header …' in written
    files = ''.join(p.read_text() for p in (tmp_path / 'ws').rglob('*') if p.is_file())
    out, err = capfd.readouterr()
    for shown in (written, status, told, str(caught.value), repr(daemon.config), files, out, err):
        for value in (VALUE, json.dumps(VALUE)[1:-1], repr(VALUE)[1:-1]):
            assert value not in shown


def test_the_configuration_shows_names_only() -> None:
    """A configuration that is shown, or compared, holds the names of secrets and never one of them."""
    backend = Backend(kind=KIND, options={'api_key_env': 'KEY'})
    config = Config(backends={'gpt': backend}, desks=[Desk(name='main', backends=['gpt'])])
    assert 'KEY' in repr(config)
    with_secrets(backend.options, 'p', {'KEY': VALUE})
    assert VALUE not in repr(config)
