"""One turn at a time over a history, which it changes only when it has ended well."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from trading_agent.conversation.history import History
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.session_data import counts_of
from trading_agent.conversation.session_records import SessionRecords
from trading_agent.conversation.session_turn import SessionTurn
from trading_agent.errors import BackendError, SessionBusy
from trading_agent.turn_events import TurnAnswered, TurnEvent


class Turns:
    """The turns of one session.

    Args:
        history: What was said so far.
        journal: Where each event is written before it is told, or None.
        count: Is given the tokens that a turn has used, whatever became of it.
    """

    def __init__(self, history: History, journal: Journal | None, count: Callable[[Mapping[str, int]], None]) -> None:
        self._history = history
        self._journal = journal
        self._count = count
        self._running: SessionTurn | None = None

    def require_rest(self) -> None:
        """Sees to it that no turn runs.

        Raises:
            SessionBusy: One does.
        """
        if self._running is not None:
            raise SessionBusy(
                'a turn of this session is running',
                'wait for its end, or close its stream; for turns side by side, fork the session',
            )

    async def events(self, turn: SessionTurn) -> AsyncGenerator[TurnEvent, None]:
        """Runs a turn: each event is in the journal before it is yielded, and the turn in the history before the last.

        Raises:
            SessionBusy: Another turn runs.
            InvalidInput: A tool call that was added to the history has no result yet.
            StorageError: The journal could not be written.
            Exception: As of `SessionTurn.events`.
        """
        self._begin(turn)
        records = None if self._journal is None else SessionRecords(self._journal, turn)
        try:
            if records is not None:
                await records.begin()
            async with aclosing(turn.events(self._history.messages)) as events:
                async for event in events:
                    if records is not None:
                        await records.take(event)
                    if isinstance(event, TurnAnswered):
                        self._keep(turn)
                    yield event
        except BaseException as error:
            failure = _failure_in(error)
            if records is not None:
                await (records.dropped() if failure is None else records.failed(failure))
            if failure is None or failure is error:
                raise
            raise failure from error
        finally:
            self.leave(turn)
            self._count(counts_of(turn.usage))

    def leave(self, turn: SessionTurn) -> None:
        """Lets the next turn begin, unless it has."""
        if self._running is turn:
            self._running = None

    def _begin(self, turn: SessionTurn) -> None:
        self.require_rest()
        self._history.require_whole()
        self._running = turn

    def _keep(self, turn: SessionTurn) -> None:
        self._history.extend(turn.messages)
        turn.is_kept = True
        self.leave(turn)


def _failure_in(error: BaseException) -> Exception | None:
    """Returns what a turn failed by, or None where it was cut off: dropped by who reads it, or cancelled."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            return BackendError('something inside it was cancelled')  # nobody cancels this turn
    return error if isinstance(error, Exception) else None
