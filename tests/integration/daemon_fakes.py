"""A daemon inside a test: desks whose backend is held by the test, and components that note what they see."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio

from trading_agent.clock import INDIA, Clock, ManualClock
from trading_agent.config import Backend, Component, Config, Desk
from trading_agent.daemon.daemon import Daemon
from trading_agent.event_bus import EventBus, Subscription
from trading_agent.events import Event
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent
from trading_agent.trigger import Trigger

T = TypeVar('T')
E = TypeVar('E', bound=Event)

MORNING = datetime(2026, 3, 10, 10, tzinfo=INDIA)


def config_for(
    workspace: Path,
    *,
    desks: Sequence[Desk] = (),
    components: Sequence[Component] = (),
    backends: dict[str, Backend] | None = None,
    **keys: Any,  # noqa: ANN401 - as in the configuration
) -> Config:
    """Returns a configuration; a backend `offline` is always there."""
    return Config(
        workspace=workspace,
        backends={'offline': Backend(kind='offline'), **(backends or {})},
        desks=list(desks) or [Desk(name='main')],
        components=list(components),
        **keys,
    )


def daemon_of(config: Config, clock: Clock | None = None, **options: Any) -> Daemon:  # noqa: ANN401 - a daemon's
    """Returns a daemon without a socket and inboxes, whose clock stands still."""
    return Daemon(config, clock or ManualClock(MORNING), faces=False, environ={}, **options)


def component(name: str, entry: str, **options: Any) -> Component:  # noqa: ANN401 - as in the configuration
    """Returns a component of a module of this folder."""
    return Component(name=name, entry=entry, options=options)


def told(events: Subscription, kind: type[E]) -> list[E]:
    """Returns the events of a kind that were published since the last look."""
    return [item.event for item in events.ready(1 << 20) if isinstance(item.event, kind)]


async def until(condition: Callable[[], T | None], what: str, seconds: float = 30.0) -> T:
    """Returns what a condition returns as soon as that is true.

    Raises:
        AssertionError: It did not come true in time.
    """
    with anyio.move_on_after(seconds):
        while True:
            result = condition()
            if result:
                return result
            await anyio.sleep(0.005)
    raise AssertionError(f'not within {seconds} s: {what}')


async def send(daemon: Daemon, desk: str, trigger_id: str, **fields: Any) -> None:  # noqa: ANN401 - a trigger's
    """Sends a trigger, which is accepted."""
    receipt = await daemon.bus.send(Trigger(f'tell me about {trigger_id}', desk, id=trigger_id, **fields))
    assert receipt.status == 'accepted', receipt


async def answered(daemon: Daemon, desk: str, trigger_id: str) -> None:
    """Sends a trigger and waits until it is answered."""
    await send(daemon, desk, trigger_id)
    queue = daemon.supervisor.desks[desk].queue
    closing = await until(lambda: queue.closing(trigger_id), f'{trigger_id} is closed')
    assert closing.outcome == 'answered'


class Held:
    """A backend that answers when the test lets it.

    Args:
        seen: Where it notes what it was asked: texts of turns, and `review`.
        gate: Answers wait until it is set.
    """

    def __init__(self, seen: list[str], gate: Callable[[], anyio.Event]) -> None:
        self._seen = seen
        self._gate = gate

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        self._seen.append('review' if turn.schema is not None else turn.text)
        await self._gate().wait()
        if turn.schema is not None:
            yield TurnAnswered('{"summary": "a quiet day", "memory": "", "reasons": ""}')
            return
        yield TextPiece('noted')
        yield TurnAnswered('noted')


class Gate:
    """Holds the answers of a `Held` backend."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.seen: list[str] = []
        self._event = anyio.Event()
        if is_open:
            self._event.set()

    def event(self) -> anyio.Event:
        """Returns what is waited for now."""
        return self._event

    def open(self) -> None:
        """Lets everything be answered from now on."""
        self._event.set()

    def shut(self) -> None:
        """Holds what is asked from now on."""
        self._event = anyio.Event()

    def backend(self) -> Backend:
        """Returns the backend as configured."""
        return Backend(kind='daemon_fakes:held', options={'seen': self.seen, 'gate': self.event})


def held(_: str, options: dict[str, Any]) -> Held:
    """Makes a backend of this kind."""
    return Held(**options)


async def noting(bus: EventBus, options: dict[str, Any]) -> None:
    """A component that notes every event, and when it begins and ends, in the list `seen`."""
    seen: list[Any] = options['seen']
    seen.append('begins')
    try:
        with bus.subscribe() as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - each as it comes
    finally:
        seen.append('ends')
