"""What the tests of MCP servers share: servers to start, and a desk's servers at work."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import util
from pathlib import Path
from typing import Any

import anyio
import pytest

from trading_agent.settings import McpServer
from trading_agent.tools.mcp_connection import ServerNews
from trading_agent.tools.mcp_servers import McpServers
from trading_agent.units import Duration

HERE = Path(__file__).parent
QUICK = (0.05, 0.2)
"""Pauses between two starts, in seconds, for tests that end servers many times."""


def need_package(*names: str) -> None:
    """Skips a whole file or a test where a package is not installed; with `scripts/check --all` it fails."""
    missing = [name for name in names if util.find_spec(name) is None]
    if missing:
        reason = f'not installed: {", ".join(missing)}'
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail(reason)
        pytest.skip(reason, allow_module_level=True)


def plain(orders: Path, mode: str = 'good', name: str | None = None, **options: Any) -> McpServer:  # noqa: ANN401
    """Returns a server that starts at once and misbehaves as its mode says; see `mcp_plain_server.py`."""
    command = [sys.executable, '-S', '-E', str(HERE / 'mcp_plain_server.py'), mode, str(orders)]
    return McpServer(name=name or mode, command=command, **{'timeout': Duration(30), **options})


def official(orders: Path, **options: Any) -> McpServer:  # noqa: ANN401
    """Returns a server made with the official SDK, over stdio; see `mcp_order_server.py`."""
    command = [sys.executable, str(HERE / 'mcp_order_server.py'), 'stdio', str(orders)]
    return McpServer(name='orders', command=command, **options)


class HttpServer:
    """The same server over streamable HTTP, in a process of its own; it keeps its port when it is started again."""

    def __init__(self, orders: Path, *arguments: str) -> None:
        self._orders = orders
        self._arguments = arguments
        self._process: anyio.abc.Process | None = None
        self.port = 0

    async def start(self) -> None:
        command = [sys.executable, str(HERE / 'mcp_order_server.py'), 'http', str(self._orders), str(self.port)]
        self._process = await anyio.open_process([*command, *self._arguments], stderr=None)
        assert self._process.stdout is not None
        self.port = int(await self._process.stdout.receive())

    async def kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def settings(self, **options: Any) -> McpServer:  # noqa: ANN401
        return McpServer(name='orders', url=f'http://127.0.0.1:{self.port}/mcp', **options)


@asynccontextmanager
async def http_server(orders: Path, *arguments: str) -> AsyncIterator[HttpServer]:
    """Runs a server over streamable HTTP."""
    server = HttpServer(orders, *arguments)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


class Running:
    """A desk's servers, and what was told of them."""

    def __init__(self, servers: McpServers, news: list[ServerNews]) -> None:
        self.servers = servers
        self.news = news

    async def text(self, name: str, key: str | None = None, **arguments: Any) -> str:  # noqa: ANN401
        """Returns what a call gave back; it is no error."""
        outcome = await self.servers.call(name, arguments, key=key)
        assert not outcome.is_error, outcome.text
        return outcome.text

    async def error(self, name: str, key: str | None = None, **arguments: Any) -> str:  # noqa: ANN401
        """Returns what the model is told of a call that failed."""
        outcome = await self.servers.call(name, arguments, key=key)
        assert outcome.is_error, outcome.text
        return outcome.text

    async def works_again(self, name: str) -> None:
        """Waits until a tool `echo` answers."""
        with anyio.fail_after(30):
            while (await self.servers.call(name, {'text': 'again'})).text != 'again':  # noqa: ASYNC110
                await anyio.sleep(0.01)

    async def first_news(self) -> ServerNews:
        """Waits until something is told of a server."""
        with anyio.fail_after(30):
            while not self.news:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        return self.news[0]

    async def ready(self, *names: str) -> None:
        """Waits until servers are ready."""
        with anyio.fail_after(30):
            while not {of.server for of in self.servers.news if of.state == 'ready'} >= set(names):  # noqa: ASYNC110
                await anyio.sleep(0.01)


@asynccontextmanager
async def running(servers: Sequence[McpServer], **options: Any) -> AsyncIterator[Running]:  # noqa: ANN401
    """Runs a desk's servers; they are gone behind the block."""
    news: list[ServerNews] = []
    desk = McpServers('main', servers, on_news=news.append, **{'delays': QUICK, **options})
    async with anyio.create_task_group() as tasks:
        await tasks.start(desk.run)
        yield Running(desk, news)
        tasks.cancel_scope.cancel()


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int, within: float = 30.0) -> None:
    """Waits until a process is gone."""
    with anyio.fail_after(within):
        while is_alive(pid):  # noqa: ASYNC110 - there is nothing to wait for
            await anyio.sleep(0.02)
