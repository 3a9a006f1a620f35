"""The turns of a session in its journal: what happens is written before it is told."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from trading_agent.clock import utc_text
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.records import (
    AnyRecord,
    CallFailed,
    MessageSaid,
    TextCame,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
)
from trading_agent.conversation.session_turn import SessionTurn
from trading_agent.disk import Disk
from trading_agent.errors import StorageError
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnAnswered, TurnEvent

_LONGEST_ERROR = 2000  # characters


class SessionRecords:
    """Writes one turn of a session. The messages written are those that the history gets, also of a second try.

    Args:
        journal: Where to.
        turn: The turn.
    """

    def __init__(self, journal: Journal, turn: SessionTurn) -> None:
        self._journal = journal
        self._turn = turn
        self._turn_id = str(uuid.uuid4())
        self._started_at = utc_text(datetime.now(UTC))
        self._messages_written = 0
        self._has_end = False

    async def begin(self) -> None:
        """Writes what the model is going to be told.

        Raises:
            StorageError: It could not be written.
        """
        await self._write([TurnBegun(turn_id=self._turn_id, purpose='turn'), *self._said()])

    async def take(self, event: TurnEvent) -> None:
        """Writes what is going to be told; the end is on the disk when this returns.

        Raises:
            StorageError: It could not be written.
        """
        match event:
            case TextPiece(text=text):
                await self._write([*self._said(), TextCame(turn_id=self._turn_id, text=text)])
            case ToolCalled(id=call_id, name=name, arguments=arguments):
                requested = ToolRequested(turn_id=self._turn_id, id=call_id, name=name, arguments=arguments)
                await self._write([*self._said(), requested])
            case ToolReturned():
                await self._write(self._said())
            case TurnAnswered(model=model):
                end = TurnEnded(
                    turn_id=self._turn_id,
                    outcome='answered',
                    backend=model,
                    started_at=self._started_at,
                    usage=self._turn.usage or None,
                )
                await self._write([*self._said(), end], sync=True)
                self._has_end = True
            case _:
                pass

    async def failed(self, error: Exception) -> None:
        """Writes that the turn has failed, where that can be written."""
        what = str(error)[:_LONGEST_ERROR] or type(error).__name__
        usage = self._turn.usage or None
        failure = CallFailed(turn_id=self._turn_id, error_type=type(error).__name__, error=what, usage=usage)
        await self._cut([failure, TurnCut(turn_id=self._turn_id, cause='no_backend')])

    async def dropped(self) -> None:
        """Writes that nobody wanted to hear the rest, where that can be written."""
        await self._cut([TurnCut(turn_id=self._turn_id, cause='dropped', usage=self._turn.usage or None)])

    async def _cut(self, records: Sequence[AnyRecord]) -> None:
        if self._has_end:
            return
        with suppress(StorageError):  # a turn without an end reads as one that was cut off
            await self._write(records)

    def _said(self) -> list[AnyRecord]:
        new = self._turn.messages[self._messages_written :]
        self._messages_written += len(new)
        return [MessageSaid(turn_id=self._turn_id, message=message) for message in new]

    async def _write(self, records: Sequence[AnyRecord], *, sync: bool = False) -> None:
        if records:
            await Disk(threads=1).run(partial(self._journal.append, *records, sync=sync))
