"""What a start of a desk makes good of the turns that a crash came into."""

from collections.abc import Sequence
from datetime import timedelta

from trading_agent import json_lines
from trading_agent.clock import trading_date as trading_date_of
from trading_agent.conversation.journal_folder import JournaledTurn, JournalFolder
from trading_agent.conversation.records import TurnBegun, TurnEnded
from trading_agent.daemon.turn_news import TurnNews
from trading_agent.daemon.unknown_outcomes import UnknownOutcomes
from trading_agent.disk import Disk
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.memory.trigger_queue import Entry, TriggerQueue


class Recovery:
    """Brings one desk's queue, journal and log to the same state.

    Args:
        queue: The triggers.
        store: The desk's sessions folder.
        journals: The desk's journals.
        unknown: Closes those that had acted.
        news: Tells what was cut off.
        disk: Where file work is done.
    """

    def __init__(
        self,
        *,
        queue: TriggerQueue,
        store: SessionStore,
        journals: JournalFolder,
        unknown: UnknownOutcomes,
        news: TurnNews,
        disk: Disk,
    ) -> None:
        self._queue = queue
        self._store = store
        self._journals = journals
        self._unknown = unknown
        self._news = news
        self._disk = disk
        self._begun_last: TurnBegun | None = None

    async def close_answered(self) -> None:
        """Closes each open trigger whose exchange is in a log: a crash came between the two.

        A turn that has its end in the journal, but no exchange, gets that first. One that a crash cut off after it
        had acted is closed as unknown.
        """
        oldest = self._queue.oldest
        if oldest is None:
            return
        since = trading_date_of(oldest.accepted_at) - timedelta(days=1)
        session_ids = await self._disk.run(self._store.session_ids)
        for number, session_id in enumerate(session_ids):
            if number and split_session_id(session_id)[0] < since:
                break
            await self._disk.run(self._journals.mend, session_id)
            waiting = {entry.trigger.id for entry in self._queue.open_entries()}
            turns = await self._disk.run(self._journals.turns_of, session_id, waiting)
            for exchange in await self._disk.run(self._completed, session_id, turns):
                for entry in filter(None, map(self._queue.entry, exchange.answers)):
                    await self._queue.close(entry, 'answered', session_id)
            if turns:
                self._begun_last = self._begun_last or turns[-1].begun
            for turn in turns:
                await self._close_if_unknown(turn)

    def _completed(self, session_id: str, turns: Sequence[JournaledTurn]) -> list[Exchange]:
        exchanges = self._store.exchanges(session_id)
        for journaled in filter(None, (turn.exchange() for turn in turns)):
            if all(exchange.trigger_id != journaled.trigger_id for exchange in exchanges):
                self._store.append_exchange(session_id, journaled)
                exchanges.append(journaled)
        return exchanges

    async def _close_if_unknown(self, turn: JournaledTurn) -> None:
        # Whatever the queue says: the call is on the disk, and that the turn was started may have been lost.
        entries = [entry for entry in map(self._queue.entry, turn.begun.answers) if entry is not None]
        if entries and turn.effects and not isinstance(turn.end, TurnEnded):
            calls = [
                f'{call.name}({json_lines.encode(call.arguments).decode().strip()[:300]})' for call in turn.effects
            ]
            turn_id = f'{turn.begun.trigger_id}:{turn.begun.attempt}'
            await self._unknown.close(entries, turn_id, calls, 'a crash cut it off after it had acted')

    def _cut_off_in(self, begun: TurnBegun) -> list[Entry]:
        entries = filter(None, map(self._queue.entry, begun.answers))
        return [entry for entry in entries if entry.in_the_air and entry.attempts == begun.attempt]

    def tell_cut_off(self) -> None:
        """Tells of the turns that a crash cut off."""
        begun = self._begun_last
        if begun is not None and (together := self._cut_off_in(begun)):
            # One turn at a time: whatever else has no end was told by the start after that one.
            self._news.interrupted(begun.trigger_id, begun.attempt, len(together), 'crash')
            return
        for entry in self._queue.open_entries():
            if entry.in_the_air:
                self._news.interrupted(entry.trigger.id, entry.attempts, 1, 'crash')
