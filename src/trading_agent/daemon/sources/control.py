"""The control socket: HTTP by which the command line, and whoever else may open the socket, asks and commands.

    GET  /v1/status                        how everything is
    GET  /v1/events?desk=&event=           what happens, as JSON lines
    POST /v1/desks/{desk}/triggers?wait=   a trigger; the receipt, or with wait=true JSON lines up to the answer
    DELETE /v1/desks/{desk}/triggers/{id}  closes a waiting or running trigger as cancelled
    POST /v1/desks/{desk}/pause            holds a desk: {"by", "reason", "now"}
    POST /v1/desks/{desk}/resume           lets a paused or parked desk go on: {"by"}
    POST /v1/desks/{desk}/rollover         a rollover after the running turn
    POST /v1/reload                        the configuration is read again and put in force, or refused whole
    GET  /v1/backends                      how the backends are, and which desk uses them how
    POST /v1/backends/{name}/test          one tiny call beside all desks, and what came of it: {"by"}
    POST /v1/backends/{name}/disable       takes a backend out of use for every desk, until `enable`: {"by", "reason"}
    POST /v1/backends/{name}/enable        takes it into use again: {"by"}

An error is `{"error", "hint"}`; a configuration that is refused has `problems` too.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from trading_agent.daemon.backend_status import BackendsPort
from trading_agent.daemon.sources.backend_commands import BackendCommands
from trading_agent.daemon.sources.desk_commands import DeskCommands, did_you_mean, missing_desk, no_such_desk
from trading_agent.daemon.sources.http_server import (
    JsonAnswer,
    LineStream,
    LineWriter,
    SocketServer,
    bind_socket,
    error_answer,
    remove_socket,
    unexpected,
)
from trading_agent.daemon.sources.request_body import BadRequest, Room, read_body
from trading_agent.daemon.sources.trigger_request import Follower, decode_request, refusal
from trading_agent.daemon.status import ControlPort
from trading_agent.errors import ConfigurationError, DeskUnusable, InvalidTrigger, TradingAgentError
from trading_agent.event_bus import EventBus
from trading_agent.event_catalog import event_types
from trading_agent.events import Event, TurnOutput
from trading_agent.logs import log_record
from trading_agent.trigger import MAX_TEXT_BYTES, Receipt

_LOGGER = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = MAX_TEXT_BYTES * 6 + (64 << 10)
"""Room for the longest text with every character escaped as six, and for the other fields."""

MOST_BYTES_AT_ONCE = 64 << 20
"""How much of all bodies together is held while they are being read."""

_EVENTS_AT_ONCE = 256


class ControlServer:
    """Serves the control socket.

    Args:
        bus: Where triggers go to and events come from.
        port: What the daemon can be asked.
        socket_path: Where the socket is made.
        group: The group that may use the socket, which is then 0660 and not 0600; None for the owner alone.
        max_body_bytes: The longest body of a request; a longer one is answered with 413.
        run_id: The daemon's run, as events tell it.
        backends: What the daemon can be asked about its backends; None where it cannot.
        open_from: Until this is set requests wait, since the desks are not known yet; None for open at once.
    """

    def __init__(
        self,
        bus: EventBus,
        port: ControlPort,
        socket_path: Path,
        *,
        group: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        run_id: str,
        backends: BackendsPort | None = None,
        open_from: anyio.Event | None = None,
    ) -> None:
        self._bus = bus
        self._port = port
        self._commands = DeskCommands(port)
        self._path = socket_path
        self._group = group
        self._max_body_bytes = max_body_bytes
        self._room = Room(MOST_BYTES_AT_ONCE)
        self._run_id = run_id
        self._stopping = anyio.Event()
        self._backends = None if backends is None else BackendCommands(backends, self._stopping)
        self._open_from = open_from
        self._server: SocketServer | None = None

    @property
    def beats(self) -> float:
        """When the serving loop was last alive, by `anyio.current_time()` in seconds; 0 before it serves."""
        return 0.0 if self._server is None else self._server.beat

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Binds the socket, says that it is ready, and serves until `stop()`; being cancelled stops it likewise.

        Raises:
            ConfigurationError: There is no such group.
            StorageError: The socket cannot be made, or something that is no socket stands in its place.
        """
        listener = await anyio.to_thread.run_sync(bind_socket, self._path, self._group)
        try:
            self._server = SocketServer(self._application(), task_status.started)
            if self._stopping.is_set():
                self._server.should_exit = True
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve, self._server, listener)
                try:
                    await self._stopping.wait()
                finally:
                    self.stop()
        finally:
            listener.close()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_socket, self._path)

    async def _serve(self, server: SocketServer, listener: socket.socket) -> None:
        # uvicorn does not clean up when it is cancelled: it is told to stop instead.
        with anyio.CancelScope(shield=True):
            try:
                await server.serve([listener])
            finally:
                self.stop()

    def stop(self) -> None:
        """Ends the streams, then the server; requests that are being answered get a few seconds."""
        self._stopping.set()
        if self._server is not None:
            self._server.should_exit = True

    def _application(self) -> Starlette:
        routes = [
            self._route('GET', '/v1/status', self.status),
            self._route('GET', '/v1/events', self.events, ('desk', 'event')),
            self._route('POST', '/v1/desks/{desk}/triggers', self.send, ('wait',)),
            self._route('DELETE', '/v1/desks/{desk}/triggers/{id:path}', self._commands.cancel, ('by', 'reason')),
            self._route('POST', '/v1/desks/{desk}/pause', self._commands.pause),
            self._route('POST', '/v1/desks/{desk}/resume', self._commands.resume),
            self._route('POST', '/v1/desks/{desk}/rollover', self._commands.roll_over),
            self._route('POST', '/v1/reload', self._commands.reload),
        ]
        if self._backends is not None:
            routes += [
                self._route('GET', '/v1/backends', self._backends.report),
                self._route('POST', '/v1/backends/{name:path}/test', self._backends.test),
                self._route('POST', '/v1/backends/{name:path}/disable', self._backends.disable),
                self._route('POST', '/v1/backends/{name:path}/enable', self._backends.enable),
            ]
        known = (f'{min(route.methods or {""})} {route.path.replace(":path", "")}' for route in routes)
        hint = 'there is ' + ', '.join(known)

        async def no_such_route(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
            answer = error_answer(error.status_code, f'{request.method} {request.url.path}: {error.detail}', hint)
            answer.headers.update(error.headers or {})
            return answer

        application = Starlette(routes=routes, exception_handlers={HTTPException: no_such_route})
        application.router.redirect_slashes = False
        return application

    def _route(self, method: str, path: str, handler: Handler, parameters: tuple[str, ...] = ()) -> Route:
        """Returns a route whose handler may raise, and that takes these query parameters and no others."""

        async def guarded(request: Request) -> Response:
            try:
                for name in request.query_params:
                    if name not in parameters:
                        hint = did_you_mean(name, parameters) or 'leave it out'
                        return error_answer(400, f'there is no parameter {name!r}', hint)
                if not await self._opened():
                    return error_answer(503, 'the daemon is stopping', 'ask again once it runs')
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except TradingAgentError as error:
                return _refused_as(error)
            except Exception as error:
                _LOGGER.exception('%s %s failed', request.method, request.url.path)
                return unexpected(error)

        route = Route(path, guarded, methods=[method])
        # A stream has no end that a HEAD could wait for.
        (route.methods or set()).discard('HEAD')
        return route

    async def _opened(self) -> bool:
        """Returns once the desks are known; False when the server stops before they are."""
        if self._open_from is None or self._open_from.is_set():
            return True
        async with anyio.create_task_group() as first:

            async def stopped() -> None:
                await self._stopping.wait()
                first.cancel_scope.cancel()

            first.start_soon(stopped)
            await self._open_from.wait()
            first.cancel_scope.cancel()
        return self._open_from.is_set()

    # -- what can be asked -------------------------------------------------------------------------------------

    async def status(self, _: Request) -> Response:
        """Answers how everything is."""
        return JsonAnswer(self._port.status())

    async def events(self, request: Request) -> Response:
        """Answers what happens from now on, a line for each event, in the shape of the log.

        `turn_output`, which shows what is being said, comes only to who asks for it by name.
        """
        known = event_types()
        desk = request.query_params.get('desk') or None
        if desk is not None and not self._port.has_desk(desk):
            return no_such_desk(self._port, desk)
        names = request.query_params.getlist('event')
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or '`trading-agent events --catalog` lists them'
                return error_answer(400, f'no event is named {name!r}', hint)
        types = [known[name] for name in names] or [kind for kind in known.values() if kind.logged]

        async def produce(writer: LineWriter) -> None:
            await self._tell_events(types, desk, writer)

        return LineStream(produce, self._stopping)

    async def _tell_events(self, types: list[type[Event]], desk: str | None, writer: LineWriter) -> None:
        with self._bus.subscribe(*types, desk=desk, name='control') as events:
            await writer.start()
            while True:
                batch = await events.stamped(_EVENTS_AT_ONCE)
                await writer.write(
                    *(log_record(item, self._run_id, log_content=isinstance(item.event, TurnOutput)) for item in batch)
                )

    async def send(self, request: Request) -> Response:
        """Sends a trigger and answers its receipt, or with `wait=true` follows it until it is closed."""
        desk = request.path_params['desk']
        wait = request.query_params.get('wait', 'false')
        if wait not in ('true', 'false'):
            return error_answer(400, f'wait is true or false, not {wait!r}')
        body = await read_body(request, self._max_body_bytes, self._room)
        if body is None:
            return self._refused(Receipt('', desk, 'refused', 'too_large'))
        given_id = ''
        try:
            wanted = decode_request(body)
            given_id = wanted.id or ''
            trigger = wanted.to_trigger(desk)
        except InvalidTrigger as error:
            return refusal(Receipt(given_id, desk, 'refused', 'invalid'), str(error), error.hint)
        if wait == 'true':
            return LineStream(Follower(self._bus, self._port, trigger, self._refused).follow, self._stopping)
        receipt = await self._bus.send(trigger)
        return self._refused(receipt) if receipt.status == 'refused' else JsonAnswer(receipt)

    def _refused(self, receipt: Receipt) -> Response:
        if receipt.reason == 'unknown_desk':
            return refusal(receipt, *missing_desk(self._port, receipt.desk))
        return refusal(receipt)


def _refused_as(error: TradingAgentError) -> Response:
    if isinstance(error, ConfigurationError):
        problems = [{'where': problem.where, 'what': problem.what, 'hint': problem.hint} for problem in error.problems]
        hint = next((problem.hint for problem in error.problems if problem.hint), '')
        return error_answer(400, str(error), hint, problems=problems)
    return error_answer(_status_of(error), str(error), error.hint)


def _status_of(error: TradingAgentError) -> int:
    if isinstance(error, InvalidTrigger | BadRequest):
        return 400
    return 409 if isinstance(error, DeskUnusable) else 503
