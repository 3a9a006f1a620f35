"""What a person asks of the backends by the control socket: how they are, one tiny call, out of use and back."""

import anyio
from starlette.requests import Request
from starlette.responses import Response

from trading_agent.daemon.backend_status import BackendsPort
from trading_agent.daemon.sources.desk_commands import Command, ReasonedCommand, did_you_mean, read_command
from trading_agent.daemon.sources.http_server import JsonAnswer, error_answer

_LISTED = 20


class BackendCommands:
    """Answers the requests about backends.

    Args:
        port: What the daemon can be asked about them.
        stopping: Is set when the server stops: it does not wait for a test.
    """

    def __init__(self, port: BackendsPort, stopping: anyio.Event) -> None:
        self._port = port
        self._stopping = stopping

    async def report(self, _: Request) -> Response:
        """Answers how the backends are."""
        return JsonAnswer(await self._port.report())

    async def test(self, request: Request) -> Response:
        """Has a backend make one tiny call, and answers what came of it; that it failed is no error."""
        command = await read_command(request, Command)
        if isinstance(command, Response):
            return command
        name = request.path_params['name']
        return self._no_such(name) or await self._tested(name, command.by)

    async def _tested(self, name: str, by: str) -> Response:
        answer: Response = error_answer(503, 'the daemon is stopping', 'ask again once it runs')
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_at_stop, tasks.cancel_scope)
            try:
                answer = JsonAnswer(await self._port.test(name, by))
            except Exception as error:  # noqa: BLE001 - raised below, as it is and not in a group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    async def _end_at_stop(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel()

    async def disable(self, request: Request) -> Response:
        """Takes a backend out of use, and answers how it is now."""
        command = await read_command(request, ReasonedCommand)
        if isinstance(command, Response):
            return command
        name = request.path_params['name']
        return self._no_such(name) or JsonAnswer(await self._port.disable(name, command.by, command.reason))

    async def enable(self, request: Request) -> Response:
        """Takes a backend into use again, and answers how it is now."""
        command = await read_command(request, Command)
        if isinstance(command, Response):
            return command
        name = request.path_params['name']
        return self._no_such(name) or JsonAnswer(await self._port.enable(name, command.by))

    def _no_such(self, name: str) -> Response | None:
        known = self._port.names()
        if name in known:
            return None
        listed = ', '.join(known[:_LISTED]) + ('…' if len(known) > _LISTED else '')
        near = did_you_mean(name, known)
        hint = f'the backends are {listed}' + (f'; {near}' if near else '')
        return error_answer(404, f'no backend is named {name!r}', hint)
