"""The end of an answered turn: what is written, in this order, whatever the disk does meanwhile."""

from dataclasses import dataclass

from trading_agent.conversation.journal import Journal
from trading_agent.conversation.recorder import Recorder
from trading_agent.conversation.records import AnyRecord
from trading_agent.errors import StorageError
from trading_agent.memory.session_state import SessionState
from trading_agent.memory.session_store import Exchange, SessionStore


@dataclass
class Ending:
    """An answered turn on its way to the disk.

    Attributes:
        exchange: What becomes of it.
        state: The session's state with it.
        recorder: The turn's recorder, which has what is not written yet.
        records: The last records of the turn.
        journaled: Whether these are synced: from then on the turn has ended, and is never run again.
    """

    exchange: Exchange
    state: SessionState
    recorder: Recorder
    records: list[AnyRecord]
    journaled: bool = False

    def write(self, journal: Journal, store: SessionStore) -> StorageError | None:
        """Syncs the journal's end, appends the exchange, replaces the state; called again, it goes on where it was.

        Returns:
            Why the state could not be replaced: the old one only means that a backend is told more than it needs.

        Raises:
            StorageError: The journal or the exchange could not be written.
        """
        if not self.journaled:
            self.records = self.recorder.rest(*self.records)
            journal.append(*self.records, sync=True)
            self.journaled = True
        store.append_exchange(self.state.session_id, self.exchange)
        try:
            store.save_state(self.state)
        except StorageError as error:
            return error
        return None
