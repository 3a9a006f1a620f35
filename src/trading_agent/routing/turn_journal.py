"""One desk's turns as they are written: to the journal first, and then told."""

from collections.abc import Callable
from datetime import date
from functools import partial
from uuid import uuid4

import msgspec

from trading_agent.clock import Clock
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.journal_folder import JournaledTurn, JournalFolder, UsageTotals
from trading_agent.conversation.recorder import Recorder, TurnRecords
from trading_agent.conversation.records import AnyRecord, CallFailed, Cause, TurnBegun, TurnCut, TurnEnded
from trading_agent.disk import Disk
from trading_agent.errors import BackendError, StorageError
from trading_agent.events import Event, ToolCalled, ToolFailed, TurnOutput, WriteFailed
from trading_agent.memory.session_state import split_session_id
from trading_agent.messages import Usage
from trading_agent.routing.backend import Backend
from trading_agent.routing.model_call import Call, Reply
from trading_agent.trigger import storable
from trading_agent.turn_events import TextPiece, TurnAnswered, TurnEvent
from trading_agent.turn_events import ToolCalled as ToolWasCalled
from trading_agent.turn_events import ToolReturned as ToolHasReturned

_LONGEST_ERROR = 2000


class Digests(msgspec.Struct, frozen=True):
    """The digests of what a turn sees beside its text; empty for what is not there.

    Attributes:
        instructions: Of AGENTS.md.
        memory: Of Memory.md.
        tools: Of the tools that it can call.
    """

    instructions: str = ''
    memory: str = ''
    tools: str = ''


class TurnJournal:
    """What happens in the turns of one desk, written and told.

    Args:
        desk: The desk's name.
        folder: The desk's journals.
        publish: Where events go.
        clock: For the times of messages.
        disk: Where file work is done.
        read_only: Says of a tool whether it has no effects.

    Attributes:
        usage: Tokens used in the current session and on its day.
    """

    def __init__(
        self,
        desk: str,
        folder: JournalFolder,
        publish: Callable[[Event], None],
        clock: Clock,
        disk: Disk,
        *,
        read_only: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._desk = desk
        self._folder = folder
        self._publish = publish
        self._clock = clock
        self._disk = disk
        self._read_only = read_only
        self._journal: Journal | None = None
        self._recorder: Recorder | None = None
        self._asked: JournaledTurn | None = None
        self._session_id = ''
        self.usage = UsageTotals()

    # -- sessions; these block on the disk ---------------------------------------------------------------------

    def pick_up(self, session_id: str, same_day: list[str]) -> None:
        """Goes on with a session's journal, and marks a turn that has no end in it as interrupted.

        Raises:
            StorageError: It cannot be read or written.
            DeskUnusable: A newer version of the program wrote it.
        """
        journal = self._folder.open(session_id)
        last = self._folder.last_turn(session_id)
        if last is not None and last.end is None:
            journal.append(TurnCut(turn_id=last.begun.turn_id, cause='crash'))
        self._asked = last if last is not None and last.begun.purpose == 'review' else None
        self.usage = UsageTotals()
        for each in {*same_day, session_id}:
            for backend, used in self._folder.usage_by_backend(each).items():
                self.usage.count(backend, used)
        self.usage.session = self._folder.usage(session_id)
        self._journal, self._session_id = journal, session_id

    def begin_session(self, session_id: str) -> None:
        """Begins a session's journal, which takes on the last digest of the one before.

        Raises:
            StorageError: It cannot be written.
        """
        same_day = bool(self._session_id) and split_session_id(self._session_id)[0] == split_session_id(session_id)[0]
        self._journal = self._folder.open(session_id, self._journal)
        self._session_id = session_id
        day = (self.usage.day, self.usage.day_of_backend) if same_day else (Usage(), {})
        self.usage = UsageTotals(Usage(), *day)

    @property
    def journal(self) -> Journal:
        """The current session's journal."""
        assert self._journal is not None  # noqa: S101 - the keeper restores the session first
        return self._journal

    @property
    def ended_digest(self) -> str:
        """The digest of the last line of the journal before this session's; empty where there was none."""
        header = self._journal.header if self._journal else None
        return header.previous_digest if header else ''

    # -- turns -------------------------------------------------------------------------------------------------

    async def begin(self, call: Call, text: str, attempt: int = 1, seen: Digests | None = None) -> Recorder:
        """Writes that a turn, or a question beside the session, begins.

        Args:
            call: The call.
            text: What the model is told.
            attempt: How often the trigger has been started, this time included.
            seen: The digests of what the turn sees beside that.
        """
        call.turn_id = call.turn_id or f'review:{uuid4()}'
        records = TurnRecords(call.turn_id, lambda: self._clock.now().timestamp(), self._read_only)
        recorder = Recorder(self.journal, self._disk, records, partial(self._show, call, records), self._tell)
        self._recorder = recorder
        seen = seen or Digests()
        begun = TurnBegun(
            turn_id=call.turn_id,
            purpose='review' if call.trigger_id is None else 'turn',
            trigger_id=call.trigger_id or '',
            attempt=attempt,
            instructions=seen.instructions,
            memory=seen.memory,
            tools=seen.tools,
            trigger_ids=call.trigger_ids,
        )
        await recorder.write(*records.begun(text, begun))
        return recorder

    async def acts_by_itself(self, recorder: Recorder, backend: Backend) -> None:
        """Writes that a backend with tools of its own is asked: its whole turn is a call that may have effects.

        Raises:
            StorageError: That could not be put on the disk: it must not be asked.
        """
        call = recorder.records.requested(recorder.records.turn_id, backend.name, {})
        await recorder.write_through(call)

    async def failed(self, recorder: Recorder, backend: Backend, error: Exception) -> list[str]:
        """Writes that a backend could not answer; what it said is void.

        Returns:
            The calls that it made and that may have had effects, in words.
        """
        records, used = recorder.records, recorder.records.usage
        self.usage.count(backend.name, used)
        effects = records.effects
        if backend.acts_by_itself and len(effects) == 1 and isinstance(error, BackendError):
            effects = []  # it says itself that it failed, and had called nothing
        await recorder.write(
            CallFailed(
                turn_id=records.turn_id,
                backend=backend.name,
                error_type=type(error).__name__,
                error=str(error)[:_LONGEST_ERROR] or type(error).__name__,
                usage=used or None,
                without_effects=not effects,
            )
        )
        recorder.void()
        return effects

    async def refused(self, recorder: Recorder) -> None:
        """Writes that no backend could ever answer the turn."""
        self._recorder = None
        await recorder.write(TurnEnded(turn_id=recorder.records.turn_id, outcome='failed'))

    async def cut_off(self, cause: Cause, backend: str = '') -> list[str]:
        """Writes that the running turn is interrupted; nothing where none is running.

        Returns:
            The calls that it made and that may have had effects, in words.
        """
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return []
        used = recorder.records.usage
        self.usage.count(backend, used)
        cut = TurnCut(turn_id=recorder.records.turn_id, cause=cause, backend=backend, usage=used or None)
        await recorder.write(cut)
        return recorder.records.effects

    def last_records(
        self, recorder: Recorder, reply: Reply, started_at: str = '', finished_at: str = ''
    ) -> list[AnyRecord]:
        """Returns the records that end an answered turn."""
        records = recorder.records
        answered = TurnAnswered(storable(reply.text), model=reply.model, stop_reason=reply.stop_reason)
        end = TurnEnded(
            turn_id=records.turn_id,
            outcome='answered',
            backend=reply.backend,
            started_at=started_at,
            finished_at=finished_at,
            usage=records.usage or None,
        )
        return [*records.of(answered), end]

    def ended(self, recorder: Recorder, backend: str) -> None:
        """Tells what is left to tell of an answered turn, and counts what it used: its end is on the disk."""
        self._recorder = None
        recorder.show_rest()
        self.usage.count(backend, recorder.records.usage)

    async def end_review(self, recorder: Recorder, reply: Reply) -> None:
        """Writes the answer to a question beside the session, durably where the disk takes it."""
        last = self.last_records(recorder, reply)
        try:
            await self._disk.run(partial(self.journal.append, *recorder.rest(*last), sync=True))
        except StorageError as error:
            self._tell(error)  # the answer is here, and whoever asked for it writes it down
        self.ended(recorder, reply.backend)

    def answered_before(self, instruction: str) -> tuple[str, str] | None:
        """Returns the answer to a question, and who gave it, that a crash came after; each is given out once."""
        asked, self._asked = self._asked, None
        if asked is None or asked.answer is None or asked.told != storable(instruction):
            return None
        return asked.answer, asked.end.backend if isinstance(asked.end, TurnEnded) else ''

    # -- telling -----------------------------------------------------------------------------------------------

    @property
    def _trading_date(self) -> date:
        return split_session_id(self._session_id)[0]

    def _show(self, call: Call, records: TurnRecords, event: TurnEvent) -> None:
        """Tells what a turn brings, once it is written; of a question beside the session nothing is told."""
        if call.trigger_id is None:
            return
        told: Event
        match event:
            case TextPiece(text=text):
                told = TurnOutput(
                    trigger_id=call.trigger_id, turn_id=call.turn_id, backend=call.backend or '', text=text
                )
            case ToolWasCalled(id=call_id, name=name):
                told = ToolCalled(
                    trigger_id=call.trigger_id,
                    turn_id=call.turn_id,
                    backend=call.backend or '',
                    tool=name,
                    call_id=call_id,
                )
            case ToolHasReturned(id=call_id, content=content, is_error=True):
                told = ToolFailed(
                    trigger_id=call.trigger_id,
                    turn_id=call.turn_id,
                    backend=call.backend or '',
                    tool=records.tool(call_id),
                    call_id=call_id,
                    text=storable(content[:_LONGEST_ERROR]),
                )
            case _:
                return
        self._publish(
            msgspec.structs.replace(told, desk=self._desk, session_id=self._session_id, trading_date=self._trading_date)
        )

    def _tell(self, error: StorageError) -> None:
        self._publish(WriteFailed.of(error, self._desk, session_id=self._session_id, trading_date=self._trading_date))
