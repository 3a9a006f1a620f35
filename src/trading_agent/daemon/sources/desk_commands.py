"""What a person tells a desk by the control socket: hold, go on, drop a trigger, roll over. Also `reload`."""

import difflib
import shlex
from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trading_agent.daemon.sources.http_server import JsonAnswer, error_answer
from trading_agent.daemon.sources.request_body import T, convert, decode_body, read_body
from trading_agent.daemon.status import ControlPort

MAX_COMMAND_BYTES = 64 << 10
_DESKS_LISTED = 20
_LONGEST_REASON = 1000
_LONGEST_NAME = 100

EXAMPLE = '{"by": "anil", "reason": "expiry day"}'
HINTS = MappingProxyType(
    {
        'by': f'a name of 1 to {_LONGEST_NAME} characters',
        'reason': f'a text of at most {_LONGEST_REASON} characters',
        'now': 'true or false',
        '': f'send one object such as {EXAMPLE}',
    }
)


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes with every command.

    Attributes:
        by: Who gives it.
    """

    by: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_NAME)] = 'api'


class ReasonedCommand(Command, frozen=True, kw_only=True):
    """A command that holds something up.

    Attributes:
        reason: Why, in that person's words; may be empty.
    """

    reason: Annotated[str, msgspec.Meta(max_length=_LONGEST_REASON)] = ''


class PauseCommand(ReasonedCommand, frozen=True, kw_only=True):
    """Holds a desk.

    Attributes:
        now: Whether its running turn is cut off, and not waited for.
    """

    now: bool = False


class DeskCommands:
    """Answers the requests that change how a desk goes on.

    Args:
        port: What the daemon can be asked.
    """

    def __init__(self, port: ControlPort) -> None:
        self._port = port

    async def pause(self, request: Request) -> Response:
        """Holds a desk and answers its status."""
        command = await read_command(request, PauseCommand)
        if isinstance(command, Response):
            return command
        desk = request.path_params['desk']
        return self._no_such_desk(desk) or JsonAnswer(
            await self._port.pause(desk, command.by, command.reason, now=command.now)
        )

    async def resume(self, request: Request) -> Response:
        """Lets a paused or parked desk go on and answers its status."""
        command = await read_command(request, Command)
        if isinstance(command, Response):
            return command
        desk = request.path_params['desk']
        return self._no_such_desk(desk) or JsonAnswer(await self._port.resume(desk, command.by))

    async def cancel(self, request: Request) -> Response:
        """Closes a trigger as cancelled and answers its result.

        One that is closed already is 409 with its outcome: nothing was done.
        """
        command = await read_command(request, ReasonedCommand)
        if isinstance(command, Response):
            return command
        command = convert({**msgspec.to_builtins(command), **request.query_params}, ReasonedCommand, hints=HINTS)
        desk, trigger_id = request.path_params['desk'], request.path_params['id']
        refused = self._no_such_desk(desk)
        if refused is not None:
            return refused
        before = await self._port.result_of(desk, trigger_id)
        result = before or await self._port.cancel(desk, trigger_id, command.by, command.reason)
        why = f'`trading-agent why {desk} {shlex.quote(trigger_id)}`'
        if result is None:
            state = next((known.state for known in self._port.status().desks if known.name == desk), 'gone')
            unread = '' if state in ('running', 'paused') else f'it is {state} and may not have read its triggers; '
            return error_answer(404, f'{desk} knows no trigger {trigger_id!r}', f'{unread}{why} looks into the files')
        fields = {'id': trigger_id, 'desk': desk, **msgspec.to_builtins(result)}
        if before is None and result.outcome == 'cancelled':
            return JsonAnswer(fields)
        told = f'{trigger_id} was closed before as {result.outcome}'
        return error_answer(409, told, f'nothing was done; {why} tells its story', **fields)

    async def roll_over(self, request: Request) -> Response:
        """Rolls a desk over and answers what came of it."""
        desk = request.path_params['desk']
        return self._no_such_desk(desk) or JsonAnswer(await self._port.roll_over(desk))

    async def reload(self, _: Request) -> Response:
        """Puts the configuration in force that the file says now, and answers what has changed."""
        return JsonAnswer(await self._port.reload())

    def _no_such_desk(self, desk: str) -> Response | None:
        return None if self._port.has_desk(desk) else no_such_desk(self._port, desk)


async def read_command(request: Request, kind: type[T]) -> T | Response:
    """Reads a command; one without a body says nothing but what it is."""
    body = await read_body(request, MAX_COMMAND_BYTES)
    if body is None:
        return error_answer(413, 'the body is too long', f'it may have {MAX_COMMAND_BYTES} bytes')
    return decode_body(body or b'{}', kind, example=EXAMPLE, hints=HINTS)


def no_such_desk(port: ControlPort, desk: str) -> Response:
    """Returns the answer about a desk that is not there, or no longer: `status` may still show what it left."""
    error, hint = missing_desk(port, desk)
    return error_answer(409 if desk in _shown(port) else 404, error, hint)


def missing_desk(port: ControlPort, desk: str) -> tuple[str, str]:
    """Returns what is wrong with the name of a desk that cannot be asked, and what to do about it."""
    shown = _shown(port)
    if desk in shown:
        hint = 'its triggers are kept: add it to the configuration again, then `trading-agent reload`'
        return f'the desk {desk!r} is not configured', hint
    names = [name for name in shown if port.has_desk(name)]
    listed = ', '.join(names[:_DESKS_LISTED]) + ('…' if len(names) > _DESKS_LISTED else '')
    near = did_you_mean(desk, shown)
    return f'no desk is named {desk!r}', f'the desks are {listed or "none"}' + (f'; {near}' if near else '')


def _shown(port: ControlPort) -> list[str]:
    return [desk.name for desk in port.status().desks]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns a hint that names the nearest of the known words, or nothing where none is near."""
    near = difflib.get_close_matches(given[:200], list(known), 1)
    return f'did you mean {near[0]!r}?' if near else ''
