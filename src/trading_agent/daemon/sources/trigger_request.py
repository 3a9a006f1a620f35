"""A trigger that comes over the control socket: read strictly, answered plainly, followed until it is closed."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import MappingProxyType
from typing import Annotated

import anyio
import msgspec
from starlette.responses import Response

from trading_agent.daemon.sources.http_server import JsonAnswer, LineWriter, error_answer
from trading_agent.daemon.sources.request_body import BadRequest, decode_body
from trading_agent.daemon.status import ControlPort, TriggerResult
from trading_agent.errors import DeskUnusable, InvalidTrigger, StorageError
from trading_agent.event_bus import EventBus, Subscription
from trading_agent.events import Event, ModelCallFailed, TriggerClosed, TurnOutput
from trading_agent.trigger import PRIORITIES, Priority, Receipt, RefusalReason, Trigger

POLL_SECONDS = 5.0
"""How often the result is looked for where no event told of it, because some were missed."""

LONGEST_SOURCE = 128
"""The longest `source` that is taken, in characters."""

Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class TriggerRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request that sends a trigger.

    Attributes:
        text: What the desk is told.
        id: The trigger's id, or None for a new one.
        priority: `person`, `timer` or `feed`.
        source: Where it came from.
        not_before: Not run before this instant, or None.
        expires_at: Not run from this instant on, or None.
    """

    text: str
    id: str | None = None
    priority: Priority = 'feed'
    source: Annotated[str, msgspec.Meta(max_length=LONGEST_SOURCE)] = 'api'
    not_before: Instant | None = None
    expires_at: Instant | None = None

    def to_trigger(self, desk: str) -> Trigger:
        """Returns the trigger for a desk.

        Raises:
            InvalidTrigger: The text, the id or a time can never be accepted.
        """
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return Trigger(desk=desk, **given)


EXAMPLE = '{"text": "NIFTY crossed 26000"}'
HINTS = MappingProxyType(
    {
        'source': f'a text of at most {LONGEST_SOURCE} characters',
        'priority': f'one of {", ".join(PRIORITIES)}',
        'not_before': 'write it like 2026-10-19T15:10:00+05:30',
        'expires_at': 'write it like 2026-10-19T15:10:00+05:30',
        '': 'send one object with at least a "text"',
    }
)


def decode_request(body: bytes) -> TriggerRequest:
    """Reads the body of a request that sends a trigger.

    Raises:
        InvalidTrigger: It is no JSON, or not of this shape; the hint tells how to mend it.
    """
    try:
        return decode_body(body, TriggerRequest, example=EXAMPLE, hints=HINTS)
    except BadRequest as error:
        raise InvalidTrigger(str(error), error.hint) from error


_REFUSALS: dict[RefusalReason, tuple[int, str, str]] = {
    'unknown_desk': (404, 'no desk is named {desk!r}', '`trading-agent status` lists the desks'),
    'too_large': (413, 'the text is too long', 'send it in parts; max_trigger_size is the limit, and is at most 1MiB'),
    'invalid': (400, 'the trigger is invalid', ''),
    'expired': (409, 'the trigger had expired before it came', 'send it with a later expires_at, if it still matters'),
    'queue_full': (503, 'the queue of {desk} is full', 'send it again later, or raise queue_limit'),
    'storage': (
        503,
        '{desk} could not store it',
        '`trading-agent status` tells what is wrong; mend it, then send it again',
    ),
    'stopping': (503, 'the daemon is stopping', 'send it again once it runs'),
}


def refusal(receipt: Receipt, error: str | None = None, hint: str | None = None) -> JsonAnswer:
    """Returns the answer to a trigger that was turned away: its receipt, with what is wrong and what to do.

    Args:
        receipt: The receipt, with a reason.
        error: What is wrong, where more is known than the reason.
        hint: What to do about it, likewise.
    """
    status, usual_error, usual_hint = _REFUSALS[receipt.reason or 'invalid']
    return error_answer(
        status,
        usual_error.format(desk=receipt.desk) if error is None else error,
        usual_hint if hint is None else hint,
        **msgspec.to_builtins(receipt),
    )


class Follower:
    """Sends one trigger and tells its receipt, the answer as it comes, and the result.

    Args:
        bus: Where it is sent and followed.
        port: Knows how a trigger ended.
        trigger: The trigger.
        refuse: Makes the answer of a receipt that turns it away.
    """

    def __init__(
        self, bus: EventBus, port: ControlPort, trigger: Trigger, refuse: Callable[[Receipt], Response]
    ) -> None:
        self._bus = bus
        self._port = port
        self._trigger = trigger
        self._refuse = refuse
        self._shown: tuple[str, str] | None = None
        self._broken = False

    async def follow(self, writer: LineWriter) -> Response | None:
        """Writes the lines; returns an ordinary answer instead when the trigger is turned away."""
        # Subscribed before it is sent, so that nothing is missed.
        with self._bus.subscribe(
            TurnOutput, ModelCallFailed, TriggerClosed, desk=self._trigger.desk, name='control'
        ) as events:
            # A client that leaves does not take back half a trigger.
            with anyio.CancelScope(shield=True):
                receipt = await self._bus.send(self._trigger)
                if receipt.status == 'refused':
                    return self._refuse(receipt)
                await writer.write({'receipt': receipt})
            try:
                result = await self._result_so_far() if receipt.status == 'duplicate' else None
                await writer.write({'result': result or await self._wait(events, writer)})
            except DeskUnusable as error:  # the desk is no longer configured; the trigger is kept
                return error_answer(409, str(error), error.hint)
        return None

    async def _wait(self, events: Subscription, writer: LineWriter) -> TriggerResult:
        closed: TriggerClosed | None = None
        while True:
            deadline = anyio.current_time() + POLL_SECONDS
            while closed is None and anyio.current_time() < deadline:
                batch: list[Event] = []
                with anyio.move_on_at(deadline):
                    batch = await events.batch()
                if lines := list(self._lines(batch)):
                    await writer.write(*lines)
                closed = self._close_in(batch)
            try:
                result = await self._port.result_of(self._trigger.desk, self._trigger.id)
            except StorageError:
                # The answer comes once the disk can be read again, of which the log tells.
                await anyio.sleep(POLL_SECONDS)
                continue
            except DeskUnusable:
                # The desk is no longer configured. This may have been its last turn.
                if closed is None:
                    raise
                result = None
            if result is None and closed is not None:
                result = TriggerResult(closed.outcome, session_id=closed.session_id)
            if result is not None:
                return result

    async def _result_so_far(self) -> TriggerResult | None:
        try:
            return await self._port.result_of(self._trigger.desk, self._trigger.id)
        except StorageError:
            return None

    def _close_in(self, batch: Iterable[Event]) -> TriggerClosed | None:
        for event in batch:
            if isinstance(event, TriggerClosed) and event.trigger_id == self._trigger.id:
                return event
        return None

    def _lines(self, batch: Iterable[Event]) -> Iterator[dict[str, object]]:
        """Yields the pieces of the answer, and a `restart` wherever what came so far was of no use."""
        for event in batch:
            if isinstance(event, ModelCallFailed) and event.trigger_id == self._trigger.id:
                self._broken = True
            if not isinstance(event, TurnOutput) or event.trigger_id != self._trigger.id:
                continue
            attempt = (event.turn_id, event.backend)
            if self._shown is not None and (self._broken or attempt != self._shown):
                yield {'restart': True}
            self._shown, self._broken = attempt, False
            yield {'text': event.text}
