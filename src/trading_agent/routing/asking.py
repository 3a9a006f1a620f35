"""One turn, or a question beside the session, as it is put to one backend after the other."""

import dataclasses
from collections.abc import Callable, Mapping

from trading_agent.conversation.recorder import Recorder
from trading_agent.errors import NotJournaled, OutcomeUnknown, StorageError
from trading_agent.memory.session_state import RouteState
from trading_agent.routing.backend import Backend
from trading_agent.routing.model_call import Call
from trading_agent.routing.turn_journal import TurnJournal
from trading_agent.routing.turn_runner import Turn, TurnEvent


class AskedTurn:
    """What `Failover` needs to know of a turn.

    Args:
        call: Says what is asked, and of whom at this moment.
        turn: The turn without what depends on the backend.
        recorder: Writes what happens in it.
        journal: The desk's journal.
        routes: What each backend needs to go on with the session.
        over_budget: Says why a backend has had enough for the day; empty where it has not.
    """

    def __init__(
        self,
        call: Call,
        turn: Turn,
        recorder: Recorder,
        journal: TurnJournal,
        *,
        routes: Mapping[str, RouteState],
        over_budget: Callable[[Backend], str],
    ) -> None:
        self.call = call
        self.turn = turn
        self.recorder = recorder
        self._journal = journal
        self._routes = routes
        self._over_budget = over_budget

    def why_not(self, backend: Backend) -> str:
        """Says why a backend is not to be asked; a day is summed up whatever it has cost."""
        return '' if self.turn.schema is not None else self._over_budget(backend)

    async def turn_for(self, backend: Backend, *, anew: bool) -> Turn:
        """Returns the turn with what this backend knows of the session.

        Raises:
            NotJournaled: It acts by itself, and that it is asked could not be put on the disk.
        """
        self.recorder.void()
        self.call.usage = self.recorder.records.usage
        if backend.acts_by_itself and self.turn.schema is None:
            try:
                await self._journal.acts_by_itself(self.recorder, backend)
            except StorageError as error:
                raise _not_journaled(error) from error
        route = self._routes.get(backend.name)
        if route is None or anew or self.turn.schema is not None:
            return self.turn
        seen = min(route.exchanges_seen, len(self.turn.exchanges))
        return dataclasses.replace(self.turn, exchanges_seen=seen, runner_state=route.runner_state)

    async def take(self, event: TurnEvent) -> None:
        """Writes an event, and tells it.

        Raises:
            NotJournaled: A call that may have effects could not be put on the disk: it is not made.
            OutcomeUnknown: Nor could this one, and others were made before it.
        """
        try:
            await self.recorder.take(event)
        except StorageError as error:
            made = self.recorder.records.effects
            if made:
                raise OutcomeUnknown(f'a further call could not be written down: {error}', list(made)) from error
            raise _not_journaled(error) from error
        self.call.usage = self.recorder.records.usage

    async def failed(self, backend: Backend, error: Exception) -> None:
        """Writes a failed call.

        Raises:
            OutcomeUnknown: It had made calls that may have had effects.
        """
        effects = await self._journal.failed(self.recorder, backend, error)
        if effects and self.turn.schema is None:
            raise OutcomeUnknown(f'{backend.name} failed after it had acted: {error}', effects) from error


def _not_journaled(error: StorageError) -> NotJournaled:
    return NotJournaled({'the journal': str(error)})
