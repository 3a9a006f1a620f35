"""The command line in tests: run in this process, as the real one, and on a terminal; and a day that it can show."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result
from daemon_fakes import config_for, daemon_of, until

from trading_agent.cli import client, unit, workspace
from trading_agent.cli.main import cli
from trading_agent.config import Backend, Desk
from trading_agent.errors import BackendError
from trading_agent.routing.turn_runner import (
    TextPiece,
    ToolCalled,
    ToolReturned,
    Turn,
    TurnAnswered,
    TurnEvent,
    UsageCounted,
)
from trading_agent.trigger import Trigger


def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the command line find no daemon and no configuration of this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ('TRADING_AGENT_CONFIG', 'TRADING_AGENT_WORKSPACE', 'STATE_DIRECTORY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, 'RUNTIME_FOLDER', tmp_path / 'run')
    monkeypatch.setattr(workspace, 'STATE_FOLDER', tmp_path / 'state')
    monkeypatch.setattr(unit, 'UNIT', tmp_path / 'trading-agent.service')


def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """Runs a command in this process; an exception that is no exit is raised."""
    result = CliRunner().invoke(cli, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - those of Popen
    """Starts the real command."""
    command = [sys.executable, '-m', 'trading_agent', *arguments]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True, 'encoding': 'utf-8'}
    # A shell that runs the tests in the background has made SIGINT ignored, which a child inherits.
    return subprocess.Popen(command, preexec_fn=_heed_sigint, **{**pipes, **options})  # noqa: PLW1509


def _heed_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(*arguments: str, columns: int = 120, both: bool = False, **environ: str) -> str:
    """Returns what a command writes on a terminal of so many columns; with `both`, what it writes to stderr too."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, 'TERM': 'xterm-256color', 'COLUMNS': str(columns)} | environ
    if 'NO_COLOR' not in environ:
        environment.pop('NO_COLOR', None)
    pipes = {'stdout': theirs, 'stderr': theirs} if both else {'stdout': theirs}
    process = start(*arguments, **pipes, env=environment)
    os.close(theirs)
    shown = b''
    try:
        while data := os.read(ours, 1 << 16):
            shown += data
    except OSError:
        pass  # Linux tells the end of a terminal so.
    os.close(ours)
    process.communicate(timeout=30)
    assert process.returncode == 0
    return shown.decode().replace('\r\n', '\n')


class Scripted:
    """A backend that looks up what it is asked for, counts tokens, and stops in the middle when it is told to.

    Args:
        asleep: Where it notes the texts in whose middle it has stopped.
    """

    def __init__(self, asleep: list[str]) -> None:
        self._asleep = asleep

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        if turn.schema is not None:
            yield UsageCounted(input_tokens=500, output_tokens=50)
            yield TurnAnswered('{"summary": "Bought ABC.", "memory": "", "reasons": ""}')
            return
        yield UsageCounted(input_tokens=100)
        for piece in ('Let me ', 'look. '):
            yield TextPiece(piece)
        if 'wait for ever' in turn.text and 'cut off before' not in turn.text:
            self._asleep.append(turn.text)
            await anyio.sleep_forever()
        yield ToolCalled('c1', 'get_quote', {'symbol': 'ABC'})
        yield ToolReturned('c1', '{"last": 123.45}')
        yield ToolCalled('c2', 'place_order', {'symbol': 'ABC', 'quantity': 10})
        yield ToolReturned('c2', 'the market is closed', is_error=True)
        answer = f'ABC is at 123.45; the order was refused. You said: {turn.text}'
        yield TextPiece(answer[:20])
        yield TextPiece(answer[20:])
        yield UsageCounted(input_tokens=20, output_tokens=30, cache_read_tokens=1000)
        yield TurnAnswered(answer)


class Shaky(Scripted):
    """The same, but it breaks in the middle of an answer to what says `shake`."""

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        if 'shake' in turn.text and turn.schema is None:
            yield TextPiece('I think that')
            yield UsageCounted(input_tokens=7)
            raise BackendError('the line is dead')
        async for event in super().run(turn):
            yield event


def scripted(_: str, options: dict[str, Any]) -> Scripted:
    """Makes a backend of this kind."""
    return Scripted(**options)


def shaky(_: str, options: dict[str, Any]) -> Shaky:
    """Makes a backend of this kind."""
    return Shaky(**options)


async def live_through_a_day(folder: Path) -> None:
    """Makes a workspace of a desk `main` whose session has a turn with tools, one that was cut off, and a shaky one.

    Its triggers are `quote`, `cut` and `shake`; the session that followed by hand is empty.
    """
    asleep: list[str] = []
    backends = {
        name: Backend(kind=f'cli_fakes:{kind}', options={'asleep': asleep})
        for name, kind in (('claude', 'shaky'), ('gpt', 'scripted'))
    }
    desks = [Desk(name='main', backends=['claude', 'gpt'])]
    async with daemon_of(config_for(folder, desks=desks, backends=backends)) as daemon:
        desk = daemon.supervisor.desks['main']
        for trigger_id, text in (('quote', 'how is ABC?'), ('cut', 'wait for ever'), ('shake', 'shake, and tell')):
            assert (await daemon.bus.send(Trigger(text, 'main', id=trigger_id))).status == 'accepted'
        await until(lambda: asleep, 'it sleeps in the middle of a turn')
        await desk.pause('anil', 'a look', now=True)
        await desk.resume('anil')
        await until(lambda: desk.queue.closing('shake'), 'it is closed')
        await desk.roll_over()
