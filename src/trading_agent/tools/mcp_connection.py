"""One MCP server: connected, listed, called, and connected again when it is lost.

All of a connection lives in the task that runs it. A call from another task is put into a queue and made there, so
that whoever waits for it can be cancelled, or wait no longer, at any moment.
"""

import math
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from trading_agent import __version__
from trading_agent.credentials import without_secrets
from trading_agent.settings import McpServer
from trading_agent.tools.mcp_content import cut
from trading_agent.tools.mcp_session import in_words, introduce, result_of_call, tools_of
from trading_agent.tools.mcp_tools import McpTool, usable
from trading_agent.tools.mcp_transport import Link, child, streamable_http
from trading_agent.tools.outcome import ToolOutcome
from trading_agent.tools.server_settings import ServerSecrets

START_SECONDS = 60.0
"""How long a server may take to start and to list its tools: some fetch themselves first."""

PATIENCE_SECONDS = 5.0
"""How long a call waits for a server that is just being started again."""

STEADY_SECONDS = 30.0
"""A connection that lasted as long is not held against the server when it is lost."""

LOOK_SECONDS = 60.0
"""How often a server that is reached by HTTP is asked whether it is there: the end of a child is noticed at once."""

_LONGEST_ERROR = 1000  # characters

ServerState = Literal['starting', 'ready', 'down']


@dataclass(frozen=True, kw_only=True)
class ServerNews:
    """What a server has become.

    Attributes:
        server: Its name.
        state: `ready`, or `down`: told once, until it is ready again.
        tools: How many tools it has that can be used.
        left_out: Its other tools, each with the reason.
        error: Why it is down. It repeats nothing that the server was told.
        stderr: The end of what it wrote to stderr, which may.
        delay_ms: After how long it is tried again.
    """

    server: str
    state: ServerState
    tools: int = 0
    left_out: tuple[str, ...] = ()
    error: str = ''
    stderr: str = ''
    delay_ms: int = 0


@dataclass
class _Call:
    tool: str
    arguments: dict[str, Any]
    key: str | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    sent: bool = False
    outcome: ToolOutcome | None = None


class McpConnection:
    """A connection to one server.

    Args:
        server: Its configuration.
        secrets: What it is given.
        tell: Is told what becomes of it.
        delays: How long until it is tried again after a first failure, doubled with each further one, and the
            longest pause; in seconds.

    Attributes:
        state: `starting`, `ready` or `down`.
        error: Why it is down; empty while it is not.
        tools: Its tools as it listed them last; they stay while it is down.
        tried: Set once the first try to reach it has succeeded or failed.
    """

    def __init__(
        self,
        server: McpServer,
        secrets: ServerSecrets,
        tell: Callable[[ServerNews], None],
        delays: tuple[float, float] = (0.25, 60.0),
    ) -> None:
        self.server = server
        self._secrets = secrets
        self._tell = tell
        self._delays = delays
        self.tools: list[McpTool] = []
        self.reset()

    def reset(self) -> None:
        """Makes it as new, but for the tools that it has. Call it before it is run again."""
        self.state: ServerState = 'starting'
        self.error = ''
        self.tried = anyio.Event()
        self._ready = anyio.Event()
        self._doubt = anyio.Event()
        self._queue: MemoryObjectSendStream[_Call] | None = None
        self._failures = 0
        self._failed_to_start = False
        self._was_ready = False
        self._was_called = False

    # -- calling -----------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], key: str | None) -> ToolOutcome:
        """Calls a tool and returns what came of it, within the server's time limit. Cancellation goes through.

        Args:
            tool: The tool's name at its server.
            arguments: What it is given.
            key: The idempotency key, or None.
        """
        call = _Call(tool, arguments, key)
        with anyio.move_on_after(self.server.timeout):
            while await self._is_there():
                await self._queued(call)
                if call.sent:
                    break
                call = _Call(tool, arguments, key)  # the connection was lost before its turn had come
        if call.outcome is not None:
            text = without_secrets(call.outcome.text, self._secrets.secrets)
            return ToolOutcome(cut(text, self.server.max_result), call.outcome.is_error)
        if not call.sent:
            return self._failed(f'is not there ({self.error or "it is being started"}): nothing was sent to it')
        self._doubt.set()
        limit = f'{self.server.timeout:g} s'
        return self._failed(f'did not answer within {limit}: whether it did what was asked is not known')

    async def _is_there(self) -> bool:
        if self._queue is None and not self._failed_to_start:
            with anyio.move_on_after(PATIENCE_SECONDS):
                await self._ready.wait()
        return self._queue is not None

    async def _queued(self, call: _Call) -> None:
        if self._queue is None:
            return
        try:
            self._queue.send_nowait(call)
            await call.done.wait()
        finally:
            call.scope.cancel()  # where nobody waits for it any more, it is not made

    def _failed(self, what: str) -> ToolOutcome:
        return ToolOutcome(f'the server {self.server.name!r} {what}', is_error=True)

    # -- the connection's own task -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keeps the connection, until it is cancelled."""
        try:
            while True:
                began = anyio.current_time()
                error, stderr = await self._connect()
                self._failed_to_start = not self._was_ready
                lasted = self._was_ready and anyio.current_time() - began > STEADY_SECONDS
                self._failures = 1 if lasted else self._failures + 1
                await anyio.sleep(self._down(error, stderr))
        finally:
            self._failed_to_start = True
            self._lose('it was stopped')

    async def _connect(self) -> tuple[str, str]:
        """Connects, and stays until the connection is lost; returns why that was, and the end of its stderr."""
        self._was_ready, self._was_called = False, False
        link: Link | None = None
        error, it_ended = '', False
        try:
            async with self._link() as link:
                try:
                    await self._converse(link)
                finally:
                    it_ended = link.ended.is_set()
        except Exception as failure:  # noqa: BLE001 - nothing that a server does may end a desk
            error = in_words(failure)
        if link is None:
            return error, ''
        return (link.ending if it_ended else error) or 'the connection was closed', link.errors

    def _link(self) -> AbstractAsyncContextManager[Link]:
        if self.server.url is None:
            return child(self.server.command, self._secrets.env)
        # It may be silent for longer than a call may take, so that it is the call that is told to be late.
        return streamable_http(self.server.url, self._secrets.headers, self.server.timeout + PATIENCE_SECONDS)

    def _down(self, error: str, stderr: str) -> float:
        """Takes note that there is no connection; returns how long to wait before the next try, in seconds."""
        first, longest = self._delays
        delay = min(first * 2.0 ** min(self._failures - 1, 20), longest) * random.uniform(0.5, 1.0)  # noqa: S311
        last_line = stderr.strip().rpartition('\n')[2]
        if last_line and not self._was_called:  # it was told nothing yet that it could repeat
            error = f'{error}; it said: {last_line}'
        told_before = self.state == 'down'
        self._lose(without_secrets(error, self._secrets.secrets)[:_LONGEST_ERROR])
        if not told_before:
            self._tell(
                ServerNews(
                    server=self.server.name,
                    state='down',
                    tools=len(self.tools),
                    error=self.error,
                    stderr=without_secrets(stderr, self._secrets.secrets),
                    delay_ms=round(delay * 1000),
                )
            )
        return delay

    def _lose(self, error: str) -> None:
        self.state, self.error = 'down', error
        self.tried.set()

    async def _converse(self, link: Link) -> None:
        from mcp.client.session import ClientSession
        from mcp_types import Implementation

        name = Implementation(name='trading-agent', version=__version__)
        async with ClientSession(link.read, link.write, client_info=name) as session:
            try:
                with anyio.fail_after(START_SECONDS):
                    await introduce(session)
                    listed = await tools_of(session)
            except TimeoutError:
                link.fail(f'it did not start within {START_SECONDS:g} s')
                return
            self.tools, left_out = await anyio.to_thread.run_sync(usable, self.server.name, listed)
            await self._serve(session, link, left_out)

    async def _serve(self, session: Any, link: Link, left_out: list[str]) -> None:  # noqa: ANN401 - the SDK's session
        send, receive = anyio.create_memory_object_stream[_Call](math.inf)
        with send, receive:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._end_with, link, tasks.cancel_scope)
                    tasks.start_soon(self._probe, session, link)
                    self._be_ready(send, left_out)
                    async for call in receive:
                        tasks.start_soon(self._make, session, link, call)
            finally:
                self._queue = None
                self._ready = anyio.Event()
                self.state = 'starting'
                _let_go(receive)

    def _be_ready(self, queue: MemoryObjectSendStream[_Call], left_out: list[str]) -> None:
        self._queue = queue
        self._doubt = anyio.Event()
        self.state, self.error, self._was_ready = 'ready', '', True
        self._ready.set()
        self.tried.set()
        news = ServerNews(server=self.server.name, state='ready', tools=len(self.tools), left_out=tuple(left_out))
        self._tell(news)

    async def _end_with(self, link: Link, connection: anyio.CancelScope) -> None:
        await link.ended.wait()
        connection.cancel()

    async def _probe(self, session: Any, link: Link) -> None:  # noqa: ANN401 - the SDK's session
        """Asks a server that left a call without an answer for its tools, and gives one up that does not tell them."""
        pause = math.inf if self.server.url is None else LOOK_SECONDS
        while True:
            with anyio.move_on_after(pause):
                await self._doubt.wait()
            try:
                with anyio.fail_after(self.server.timeout):
                    await session.list_tools()
            except Exception:  # noqa: BLE001 - whatever it is, it is no list of tools
                link.fail('it does not answer any more')
                return
            self._doubt = anyio.Event()

    async def _make(self, session: Any, link: Link, call: _Call) -> None:  # noqa: ANN401 - the SDK's session
        try:
            with call.scope:
                await anyio.lowlevel.checkpoint()
                call.sent = self._was_called = True
                call.outcome = await result_of_call(session, call.tool, call.arguments, call.key)
        except Exception as error:  # noqa: BLE001 - the model is told
            self._doubt.set()
            if not link.ended.is_set():
                call.outcome = self._failed(f'gave no result: {in_words(error)}')
        finally:
            if call.outcome is None and call.sent:
                why = f' ({link.ending})' if link.ended.is_set() else ''
                call.outcome = self._failed(f'was lost{why}: whether it did what was asked is not known')
            call.done.set()


def _let_go(calls: MemoryObjectReceiveStream[_Call]) -> None:
    """Lets who waits for a call that was not begun go on."""
    while True:
        try:
            calls.receive_nowait().done.set()
        except (anyio.WouldBlock, anyio.EndOfStream):
            return
