"""Triggers whose turn was cut off after it had acted: they are not run again, and the desk is told what is known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from trading_agent.clock import Clock
from trading_agent.errors import NoBackend
from trading_agent.memory.gathering import gathered
from trading_agent.memory.trigger_queue import Entry, TriggerQueue
from trading_agent.trigger import Trigger

UNKNOWN_NOTE = (
    '[The message below was cut off after these calls had been asked for; whether they took effect is not known:\n'
    '{calls}\n'
    'It is not run again. Find out what happened, and decide what is still to be done.]\n\n{text}'
)
_LONGEST_ERROR = 2000


@dataclass(frozen=True)
class _Acted:
    entries: Sequence[Entry]
    turn_id: str
    calls: Sequence[str]
    error: str


class UnknownOutcomes:
    """Closes such triggers of one desk.

    Args:
        desk: The desk's name.
        queue: Its triggers.
        clock: What time it is.
        session_id: Returns the desk's session.
    """

    def __init__(self, desk: str, queue: TriggerQueue, clock: Clock, session_id: Callable[[], str | None]) -> None:
        self._desk = desk
        self._queue = queue
        self._clock = clock
        self._session_id = session_id
        self._acted: dict[str, _Acted] = {}

    def holds(self, entry: Entry) -> bool:
        """Whether a trigger is such a one and could not be closed yet: it is not run in any case."""
        return entry.trigger.id in self._acted

    async def close_again(self, entry: Entry) -> None:
        """Closes a trigger that could not be closed before, and those that were run with it."""
        await self._close(self._acted[entry.trigger.id])

    async def close(self, entries: Sequence[Entry], turn_id: str, calls: Sequence[str], error: str) -> None:
        """Closes the triggers of one turn as unknown, as far as they are open.

        The desk is told by a trigger of its own, which is accepted first: a crash in between only repeats that.

        Args:
            entries: The triggers.
            turn_id: The turn: its first trigger and the attempt.
            calls: What it had called, in words.
            error: What cut it off.

        Raises:
            NoBackend: The trigger for the desk could not be written down.
            StorageError: A closing could not be written down.
        """
        acted = _Acted(entries, turn_id, calls, error)
        self._acted |= {entry.trigger.id: acted for entry in entries}
        await self._close(acted)

    async def _close(self, acted: _Acted) -> None:
        still_open = [entry for entry in acted.entries if self._queue.entry(entry.trigger.id) is entry]
        if still_open:
            follow_up = self._follow_up(acted, still_open)
            receipt = await self._queue.accept(follow_up, own=True)
            if receipt.status == 'refused':
                raise NoBackend({'the queue': 'what is to be told to the desk could not be written down'})
            hint = f'look whether the calls were made; the desk is told by the trigger {follow_up.id}'
            named = ', '.join(call.partition('(')[0] for call in acted.calls)  # what they were given is not for the log
            made = f'{acted.error}; calls: {named}'[:_LONGEST_ERROR]
            for entry in still_open:
                await self._queue.close(entry, 'unknown', self._session_id(), error=made, hint=hint)
        for entry in acted.entries:
            self._acted.pop(entry.trigger.id, None)

    def _follow_up(self, acted: _Acted, entries: Sequence[Entry]) -> Trigger:
        digest = blake2b(acted.turn_id.encode(), digest_size=12).hexdigest()
        text = gathered([entry.trigger for entry in entries]).text
        return Trigger(
            UNKNOWN_NOTE.format(calls='\n'.join(f'- {call}' for call in acted.calls), text=text),
            self._desk,
            id=f'unknown-{digest}',
            source='unknown',
            priority=entries[0].trigger.priority,
            received_at=self._clock.now(),
        )
