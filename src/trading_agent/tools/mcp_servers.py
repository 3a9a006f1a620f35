"""The MCP servers of one desk: run side by side, their tools under one roof."""

import fnmatch
import importlib.util
import logging
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import msgspec

from trading_agent.errors import ConfigurationError, Problem
from trading_agent.settings import McpServer
from trading_agent.tools.mcp_connection import McpConnection, ServerNews
from trading_agent.tools.mcp_tools import McpTool
from trading_agent.tools.outcome import ToolOutcome
from trading_agent.tools.server_settings import server_secrets

START_PATIENCE_SECONDS = 3.0
"""How long the start of a desk waits for its servers; those that take longer bring their tools later."""

_LOGGERS = ('mcp', 'client')


class McpServers:
    """A desk's MCP servers.

    Args:
        desk: The desk's name.
        servers: Their configurations.
        allow: Patterns of the names of tools that may be called, such as `broker__get_*`; none for all.
        on_news: Is told when a server is ready or down.
        where: Where the desk is configured, for errors.
        delays: See `McpConnection`.

    Raises:
        ConfigurationError: The extra `mcp` is not installed, or a secret that is named is missing.
    """

    def __init__(
        self,
        desk: str,
        servers: Sequence[McpServer],
        *,
        allow: Sequence[str] = (),
        on_news: Callable[[ServerNews], None] = lambda _: None,
        where: str = '',
        delays: tuple[float, float] = (0.25, 60.0),
    ) -> None:
        place = f'{where}: desk {desk!r}, mcp_servers' if where else f'desk {desk!r}, mcp_servers'
        if servers and importlib.util.find_spec('mcp') is None:
            hint = "install it: pip install 'trading-agent[mcp]'"
            raise ConfigurationError([Problem(place, 'need the extra `mcp`, which is not installed', hint)])
        self._allow = tuple(allow)
        self._connections = {
            server.name: McpConnection(server, server_secrets(server, f'{place}.{server.name}'), on_news, delays)
            for server in servers
        }

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connects to the servers and keeps the connections, until it is cancelled; may be run again then.

        It has started when each was tried, or after 3 seconds.
        """
        if not self._connections:
            task_status.started()
            return
        for connection in self._connections.values():
            connection.reset()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep, tasks)
            with anyio.move_on_after(START_PATIENCE_SECONDS):
                for connection in self._connections.values():
                    await connection.tried.wait()
            task_status.started()

    async def _keep(self, tasks: anyio.abc.TaskGroup) -> None:
        # In a thread, for it takes a second; where it fails, so does each connection, and says why.
        await anyio.to_thread.run_sync(_import_sdk)
        for connection in self._connections.values():
            tasks.start_soon(connection.run)

    @property
    def tools(self) -> list[McpTool]:
        """The tools that may be called now, by server; those of a server that is down for the moment too."""
        return [tool for of in self._connections.values() for tool in of.tools if allowed(tool.name, self._allow)]

    @property
    def news(self) -> list[ServerNews]:
        """How each server is."""
        return [
            ServerNews(server=name, state=of.state, tools=len(of.tools), error=of.error)
            for name, of in self._connections.items()
        ]

    async def call(self, name: str, arguments: dict[str, Any], *, key: str | None = None) -> ToolOutcome:
        """Calls a tool. Whatever goes wrong is told in the outcome; within the server's time limit it is there.

        A call is sent at most once. Cancellation goes through, and leaves the server usable.

        Args:
            name: As in `tools`.
            arguments: What it is given.
            key: The idempotency key, told to the server in the request's `_meta`; None for none.
        """
        await anyio.lowlevel.checkpoint()
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if tool is None:
            return ToolOutcome(f'there is no tool {name!r}', is_error=True)
        try:
            own: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(arguments))
        except (TypeError, ValueError, RecursionError) as error:
            return ToolOutcome(f'these arguments cannot be sent: {error}', is_error=True)
        return await self._connections[tool.server].call(tool.remote_name, own, key)


def allowed(name: str, patterns: Sequence[str]) -> bool:
    """Whether a tool may be called: one of the patterns fits its name, or there are none."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _import_sdk() -> None:
    """Imports what the connections use, and keeps what it logs out of ours: it quotes what was said."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    try:
        import mcp.client.session
        import mcp.client.streamable_http  # noqa: F401
    except Exception:  # noqa: BLE001 - told where it is imported again
        return
