"""The one place where everything that happens is told, and where triggers are handed to their desks.

The bus is one shared ring. A subscription is a cursor on it, so that publishing costs the same for one subscriber
or a hundred: one append, and at most one deferred wake. The ring is bounded by the number of events, and by how much
text they have. A subscriber that falls behind what it holds skips ahead and is told how much it missed.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, Self

import anyio

from trading_agent.events import CONTENT_FIELDS, Event, Stamped, SubscriberLagged, TriggerRefused
from trading_agent.trigger import Receipt, Trigger

Receiver = Callable[[Trigger], Awaitable[Receipt]]

CONTENT_CHARACTERS = 1 << 24
"""How much of what was told and said the ring holds, whatever its capacity: the oldest events make room."""

TOLD_SECONDS = 1.0
"""How long `told` waits at most: a reader of the log that stalls holds up nothing for longer."""

_LET_GO = Stamped(0, datetime.fromtimestamp(0, UTC), Event())
"""In the place of an event that had to make room; nobody is shown it."""


class EventBus:
    """Tells events to subscribers, in order, and triggers to their desks.

    It belongs to one event loop: call it from that loop's thread only.

    Args:
        capacity: How many events the ring holds.
    """

    def __init__(self, capacity: int = 1 << 15) -> None:
        self._ring: list[Stamped] = []
        self._capacity = capacity
        self._published = 0
        self._first = 0  # those before made room for others
        self._held: deque[tuple[int, int]] = deque()  # the place of each event with content, and how much it has
        self._content = 0
        self._content_of: dict[type[Event], tuple[str, ...]] = {}
        self._seq = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._wake_scheduled = False
        self._receivers: dict[str, Receiver] = {}
        self._keepers: set[Subscription] = set()
        self.events_skipped = 0

    @property
    def published(self) -> int:
        """How many events have been published."""
        return self._published

    def publish(self, event: Event) -> None:
        """Tells an event. Never blocks, and never raises for what a subscriber does."""
        self._seq += event.logged
        stamped = Stamped(self._seq, datetime.now(UTC), event)
        if self._published < self._capacity:
            self._ring.append(stamped)
        else:
            self._ring[self._published % self._capacity] = stamped
        self._published += 1
        names = self._content_of.get(type(event))
        if names is None or names:
            self._hold(event)
        if self._waiting and not self._wake_scheduled:
            self._wake_scheduled = True
            next(iter(self._waiting)).get_loop().call_soon(self._wake)

    @property
    def _oldest(self) -> int:
        """The place of the oldest event that can still be read."""
        return max(self._first, self._published - self._capacity)

    def _hold(self, event: Event) -> None:
        """Counts what the event that was just published holds, and lets go of the oldest ones where it is too much."""
        kind = type(event)
        if kind not in self._content_of:
            self._content_of[kind] = tuple(name for name in event.__struct_fields__ if name in CONTENT_FIELDS)
        length = 0
        for name in self._content_of[kind]:
            length += len(getattr(event, name) or '')
        self._held.append((self._published - 1, length))
        self._content += length
        overwritten = self._published - self._capacity
        while len(self._held) > 1 and (self._content > CONTENT_CHARACTERS or self._held[0][0] < overwritten):
            place, length = self._held.popleft()
            self._content -= length
            if place >= overwritten:
                self._ring[place % self._capacity] = _LET_GO
                self._first = place + 1

    def _wake(self) -> None:
        self._wake_scheduled = False
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @contextmanager
    def subscribe(
        self,
        *types: type[Event],
        desk: str | None = None,
        since: Literal['now', 'oldest'] = 'now',
        name: str = 'subscriber',
        keeps: bool = False,
    ) -> Iterator['Subscription']:
        """Follows the events of the given types, or all.

        Args:
            *types: The event types wanted; none means every one.
            desk: Only events of this desk; None means of all, and those of no desk too.
            since: `now`, or `oldest`: from the oldest event that the ring still holds.
            name: Who this is, as told in `subscriber_lagged`.
            keeps: Whether it writes events down, calls `kept` once it has, and `told` waits for it.

        Yields:
            An asynchronous iterator over the events; `batch()` and `stamped()` read many at once.
        """
        start = self._oldest if since == 'oldest' else self._published
        subscription = Subscription(self, frozenset(types), desk, start, name)
        if not keeps:
            yield subscription
            return
        self._keepers.add(subscription)
        try:
            yield subscription
        finally:
            self._keepers.discard(subscription)
            subscription.kept(everything=True)

    async def told(self) -> None:
        """Returns once whoever writes events down has written all of those published by now, or after a second.

        What is to be told at least once is not forgotten before: a process that is killed tells nothing more.
        """
        published = self._published
        with anyio.move_on_after(TOLD_SECONDS):
            for keeper in list(self._keepers):
                await keeper.has_kept(published)

    async def send(self, trigger: Trigger) -> Receipt:
        """Hands a trigger to its desk and returns once it is durable there, or turned away."""
        receiver = self._receivers.get(trigger.desk)
        if receiver is not None:
            return await receiver(trigger)
        self.publish(
            TriggerRefused(
                trigger_id=trigger.id,
                source=trigger.source,
                reason='unknown_desk',
                error=f'no desk is named {trigger.desk!r}',
                hint='`trading-agent status` lists the desks',
            )
        )
        return Receipt(trigger.id, trigger.desk, 'refused', 'unknown_desk')

    def attach(self, desk: str, receiver: Receiver) -> None:
        """Makes `receiver` the one that gets the triggers of `desk`, in place of any earlier one."""
        self._receivers[desk] = receiver

    def detach(self, desk: str) -> None:
        """Lets triggers of `desk` be refused as `unknown_desk`."""
        self._receivers.pop(desk, None)


class Subscription:
    """One subscriber's place on the ring; made by `EventBus.subscribe`."""

    def __init__(
        self, bus: EventBus, types: frozenset[type[Event]], desk: str | None, position: int, name: str
    ) -> None:
        self._bus = bus
        self._types = types
        self._desk = desk
        self._position = position
        self._name = name
        self._lagging = False
        self._buffer: list[Event] = []
        self._kept: float = position
        self._kept_more = anyio.Event()

    def kept(self, *, everything: bool = False) -> None:
        """Says that what was read so far is written down, or that nothing more will be."""
        self._kept = math.inf if everything else self._position
        self._kept_more.set()
        self._kept_more = anyio.Event()

    async def has_kept(self, published: int) -> None:
        """Returns once the first `published` events are written down."""
        while self._kept < published:
            await self._kept_more.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; waits for it."""
        while not self._buffer:
            # Small bites, so that what is taken from the ring is still close to what has been read.
            self._buffer = [item.event for item in reversed(await self.stamped(64))]
        return self._buffer.pop()

    async def batch(self, most: int = 1024) -> list[Event]:
        """Returns at least one event and at most `most`; waits for the first."""
        return [item.event for item in await self.stamped(most)]

    async def stamped(self, most: int = 1024) -> list[Stamped]:
        """Like `batch`, with each event's number and time."""
        while True:
            found = self.ready(most)
            if found:
                return found
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._bus._waiting  # noqa: SLF001 - a cursor is part of its bus
            waiting.add(future)
            try:
                await future
            finally:
                waiting.discard(future)

    def ready(self, most: int = 1024) -> list[Stamped]:
        """Returns what is there now, without waiting: at most `most`, maybe none."""
        bus = self._bus
        found: list[Stamped] = []
        if self._position < bus._oldest:  # noqa: SLF001
            self._skip()
        while self._position < bus._published and len(found) < most:  # noqa: SLF001
            # In whole slices, up to the ring's end at a time: a hundred subscribers read what one has published.
            start = self._position % bus._capacity  # noqa: SLF001
            number = min(most - len(found), bus._published - self._position, bus._capacity - start)  # noqa: SLF001
            items = bus._ring[start : start + number]  # noqa: SLF001
            self._position += number
            found += [item for item in items if self._wants(item.event)] if self._filters else items
        if self._position == bus._published:  # noqa: SLF001
            self._lagging = False
        return found

    @property
    def _filters(self) -> bool:
        return bool(self._types) or self._desk is not None

    def _wants(self, event: Event) -> bool:
        return (not self._types or type(event) in self._types) and (self._desk is None or event.desk == self._desk)

    def _skip(self) -> None:
        bus = self._bus
        tell = not self._lagging
        full = bus._published - bus._oldest == bus._capacity  # noqa: SLF001
        oldest = bus._oldest + (tell and full)  # noqa: SLF001 - telling it takes a place on the ring too
        skipped = oldest - self._position
        self._position = oldest
        bus.events_skipped += skipped
        if tell:
            self._lagging = True
            bus.publish(SubscriberLagged(subscriber=self._name, events_skipped=skipped))
