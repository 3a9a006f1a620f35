"""Write before show: what happens in a turn is in the journal before anyone is told of it.

`TurnRecords` turns events into records; `Recorder` writes them, and hands each event on once it is written.
"""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import anyio
import msgspec

from trading_agent import json_lines
from trading_agent.beside import beside
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.records import (
    AnyRecord,
    Digested,
    MessageSaid,
    TextCame,
    ToolRequested,
    TurnBegun,
)
from trading_agent.disk import Disk
from trading_agent.errors import StorageError
from trading_agent.messages import AssistantMessage, ToolCall, ToolResultMessage, Usage, UserMessage
from trading_agent.turn_events import (
    DigestMade,
    TextPiece,
    ToolCalled,
    ToolReturned,
    TurnAnswered,
    TurnEvent,
    UsageCounted,
)

GATHER_SECONDS = 0.05
GATHER_BYTES = 1024
"""Pieces of text are gathered for so long, or until there are so many bytes, whatever comes first."""

_LONGEST_ARGUMENTS = 300

WRITE_AGAIN_SECONDS = 1.0
"""What could not be written while a turn runs is tried again after so long."""


class TurnRecords:
    """The records of one turn.

    Args:
        turn_id: The turn.
        now: What time it is, as Unix time in seconds.

        read_only: Says of a tool whether it has no effects.

    Attributes:
        turn_id: The turn.
        usage: Tokens counted since the last call of a backend began.
        effects: The calls that may have had effects, in words, since the last call of a backend began.
    """

    def __init__(
        self,
        turn_id: str,
        now: Callable[[], float] = time.time,
        read_only: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.turn_id = turn_id
        self._now = now
        self._text = ''
        self._calls: list[ToolCall] = []
        self._since_message = Usage()
        self._names: dict[str, str] = {}
        self._read_only = read_only
        self.usage = Usage()
        self.effects: list[str] = []

    def begun(self, text: str, begun: TurnBegun) -> tuple[AnyRecord, ...]:
        """Returns the records of a turn's beginning."""
        return begun, MessageSaid(turn_id=self.turn_id, message=UserMessage(text, self._now()))

    def call_begins(self) -> None:
        """Forgets what the last backend said and used: another one is asked."""
        self._text, self._calls, self._names, self.effects = '', [], {}, []
        self.usage = self._since_message = Usage()

    def of(self, event: TurnEvent) -> list[AnyRecord]:  # noqa: PLR0911 - one for each kind
        """Returns the records of an event; what is only counted has none of its own."""
        match event:
            case TextPiece(text=text):
                said = self._calls_said()  # a model that calls tools by itself goes on without a result
                self._text += text
                return [*said, TextCame(turn_id=self.turn_id, text=text)]
            case ToolCalled(id=call_id, name=name, arguments=arguments):
                self._calls.append(ToolCall(call_id, name, arguments))
                self._names[call_id] = name
                return [self.requested(call_id, name, arguments)]
            case ToolReturned(id=call_id, content=content, is_error=is_error):
                result = ToolResultMessage(call_id, self.tool(call_id), content, is_error, self._now())
                return [*self._calls_said(), MessageSaid(turn_id=self.turn_id, message=result)]
            case DigestMade(text=text, exchanges=exchanges, by_model=by_model):
                return [Digested(turn_id=self.turn_id, text=text, exchanges=exchanges, by_model=by_model)]
            case UsageCounted():
                counted = Usage(*(count or 0 for count in msgspec.structs.astuple(event)))
                self.usage += counted
                self._since_message += counted
                return []
            case TurnAnswered(answer=answer, model=model, stop_reason=stop_reason):
                message = self._message(answer, model=model, stop_reason=stop_reason)
                return [MessageSaid(turn_id=self.turn_id, message=message)]
            case _:
                return []

    def requested(self, call_id: str, name: str, arguments: dict[str, Any]) -> ToolRequested:
        """Returns the record of a call, and remembers it where it may have effects."""
        read_only = self._read_only(name)
        if not read_only:
            told = json_lines.encode(arguments).decode().strip()
            self.effects.append(f'{name}({told[:_LONGEST_ARGUMENTS]})')
        return ToolRequested(turn_id=self.turn_id, id=call_id, name=name, arguments=arguments, read_only=read_only)

    def tool(self, call_id: str) -> str:
        """Returns the name of the tool of a call; empty for an unknown one."""
        return self._names.get(call_id, '')

    def _calls_said(self) -> list[AnyRecord]:
        """Returns the message in which the model asked for tools, before the first result of them."""
        if not self._calls:
            return []
        message = self._message(self._text, stop_reason='tool_use')
        self._text, self._calls = '', []
        return [MessageSaid(turn_id=self.turn_id, message=message)]

    def _message(self, text: str, *, model: str = '', stop_reason: str | None = None) -> AssistantMessage:
        used, self._since_message = self._since_message, Usage()
        return AssistantMessage(text, list(self._calls), model, used or None, stop_reason, self._now())


class Recorder:
    """Writes one turn's events to the journal, and shows each once it is written.

    Where the disk refuses, the turn goes on: nothing is shown, and all of it is written with the turn's end.

    Args:
        journal: Where to.
        disk: Where file work is done.
        records: The turn's records.
        show: Is given each event once it is written; pieces of text put together.
        tell: Is given each failure to write.
    """

    def __init__(
        self,
        journal: Journal,
        disk: Disk,
        records: TurnRecords,
        show: Callable[[TurnEvent], None],
        tell: Callable[[StorageError], None],
    ) -> None:
        self._journal = journal
        self._disk = disk
        self._show = show
        self._tell = tell
        self.records = records
        self._writing = anyio.Lock()
        self._waiting: list[AnyRecord] = []
        self._unshown: list[TurnEvent] = []
        self._text: list[str] = []
        self._size = 0
        self._text_came = anyio.Event()
        self._not_before = 0.0

    def gathering(self) -> AbstractAsyncContextManager[None]:
        """Keeps gathered text from waiting longer than it may, for as long as a backend answers."""
        return beside(self._write_in_time)

    async def _write_in_time(self) -> None:
        while True:
            await self._text_came.wait()
            await anyio.sleep(GATHER_SECONDS)
            await self._write()

    async def take(self, event: TurnEvent) -> None:
        """Writes an event, then shows it; a piece of text may wait for the next ones.

        Raises:
            StorageError: A call that may have effects could not be put on the disk: it must not be made.
        """
        if isinstance(event, TextPiece):
            self._text.append(event.text)
            self._size += len(event.text.encode(errors='replace'))
            self._text_came.set()
            if self._size >= GATHER_BYTES:
                await self._write()
            return
        self._gather()
        made = len(self.records.effects)
        new = self.records.of(event)
        if len(self.records.effects) > made:
            try:
                await self.write_through(*new)
            except StorageError:
                self.records.effects.pop()  # it is not going to be made
                raise
            self._show(event)
        else:
            self._waiting += new
            self._unshown.append(event)
            await self._write()

    async def write_through(self, *records: AnyRecord) -> None:
        """Puts records on the disk, and all that wait before them.

        Raises:
            StorageError: They could not be written, and are forgotten; what waited before them still waits.
        """
        async with self._writing:
            self._gather()
            await self._disk.run(partial(self._journal.append, *self._waiting, *records, sync=True))
            self._waiting = []
            self.show_rest()

    async def write(self, *records: AnyRecord) -> None:
        """Writes records that nobody is shown."""
        self._gather()
        self._waiting += records
        await self._write()

    def rest(self, *last: AnyRecord) -> list[AnyRecord]:
        """Hands over what is not written yet, and the last records of the turn behind it, to be written by another.

        Once they are, `show_rest` shows what they say.
        """
        self._gather()
        waiting, self._waiting = self._waiting, []
        return [*waiting, *last]

    def show_rest(self) -> None:
        """Shows what was written by another."""
        unshown, self._unshown = self._unshown, []
        for event in unshown:
            self._show(event)

    def void(self) -> None:
        """Forgets text that was not written: the backend that said it has failed."""
        self._text, self._size = [], 0
        self.records.call_begins()

    def _gather(self) -> None:
        """Makes one piece of the text that waits."""
        if self._text:
            self._text_came = anyio.Event()
            piece = TextPiece(''.join(self._text))
            self._text, self._size = [], 0
            self._waiting += self.records.of(piece)
            self._unshown.append(piece)

    async def _write(self) -> None:
        async with self._writing:
            self._gather()
            waiting, unshown = self._waiting, list(self._unshown)
            if (not waiting and not unshown) or anyio.current_time() < self._not_before:
                return
            self._waiting = []
            try:
                if waiting:
                    await self._disk.run(self._append, waiting)
            except StorageError as error:
                self._waiting[:0] = waiting
                self._not_before = anyio.current_time() + WRITE_AGAIN_SECONDS
                self._tell(error)
            else:
                del self._unshown[: len(unshown)]
                for event in unshown:
                    self._show(event)

    def _append(self, records: list[AnyRecord]) -> None:
        self._journal.append(*records)
