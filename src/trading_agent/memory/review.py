"""What a session leaves behind: its summary and what of it goes into Memory.md, asked of a model within bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.to_thread
import msgspec

from trading_agent.disk import Disk
from trading_agent.errors import BackendError
from trading_agent.memory import carry, day_parts, review_request
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.memory_file import MemoryFile, MemoryText
from trading_agent.memory.rollover import Review, SummaryPart, clipped, summary_without_model
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.summary_check import checked
from trading_agent.trigger import storable

_SHORTEST_PART = 500  # characters


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a review may say, and how long it may take.

    Attributes:
        summary_budget: The longest summary, in characters.
        memory_budget: The longest Memory.md, in characters.
        carry_summaries: Most sessions whose summaries a new one begins with.
        review_seconds: How long all backends together may take for one question.
        curator_seconds: How long the skill curator may take.
        review_chars: How much of a session is shown at once, in characters; a longer one is summed up in parts.
    """

    summary_budget: int = 6000
    memory_budget: int = 12000
    carry_summaries: int = 3
    review_seconds: float = 180.0
    curator_seconds: float = 180.0
    review_chars: int = 200_000


class Reply(Protocol):
    """What the router answers."""

    @property
    def data(self) -> dict[str, Any]:
        """The answer's fields, where a schema was given."""
        ...

    @property
    def backend(self) -> str:
        """Who answered."""
        ...


class Asker(Protocol):
    """Who is asked: the model router."""

    async def ask(self, exchanges: Sequence[Exchange], instruction: str, schema: dict[str, Any] | None = None) -> Reply:
        """Asks a question about exchanges, beside any session."""
        ...


class Reviewer:
    """Asks for reviews of one desk's sessions.

    Args:
        desk: The desk's name.
        router: Who is asked.
        memory: The desk's Memory.md, or None for a desk without.
        limits: Bounds.
        disk: Where file work is done.
        notes: The desk's notes, or None for a desk without.
    """

    def __init__(
        self,
        desk: str,
        router: Asker,
        memory: MemoryFile | None,
        limits: Limits,
        disk: Disk,
        *,
        notes: DayNotes | None = None,
    ) -> None:
        self._desk = desk
        self._router = router
        self._memory = memory
        self._limits = limits
        self._disk = disk
        self._notes = notes

    async def step(
        self, session_id: str, exchanges: Sequence[Exchange], parts: Sequence[SummaryPart] = ()
    ) -> SummaryPart | Review:
        """Makes the summary of the next part of a session, or the review itself where no part is to be made first.

        Write down a part before the next step is made, and a crash asks for none of them again.

        Args:
            session_id: The session.
            exchanges: All of its exchanges.
            parts: The parts that were made before.

        Raises:
            BackendError: None answered in time, or the answer has no summary.
            StorageError: Memory.md or the notes cannot be read.
            DeskUnusable: A newer version of the program wrote the notes.
            Exception: Whatever the router raises when none can be asked.
        """
        done = sum(part.exchanges for part in parts)
        if done < len(exchanges) and (parts or day_parts.size_of(exchanges) > self._limits.review_chars):
            return await self._part(session_id, exchanges, done)
        return await self.review(session_id, exchanges, parts)

    async def _part(self, session_id: str, exchanges: Sequence[Exchange], done: int) -> SummaryPart:
        limits = self._limits
        part = day_parts.next_part(exchanges, done, limits.review_chars)
        # All the parts together are to be shown at once in the end.
        share = limits.review_chars // day_parts.part_count(exchanges, limits.review_chars)
        budget = min(limits.summary_budget, max(_SHORTEST_PART, share))
        instruction = review_request.part_instruction(
            self._desk, session_id, first=done + 1, last=done + len(part), total=len(exchanges), budget=budget
        )
        reply = await self._ask(session_id, part, instruction, review_request.part_schema(budget))
        return SummaryPart(len(part), clipped(_summary_in(reply, session_id), budget))

    async def review(self, session_id: str, exchanges: Sequence[Exchange], parts: Sequence[SummaryPart] = ()) -> Review:
        """Returns what a model makes of a session, its summary checked against what it was made from.

        Args:
            session_id: The session.
            exchanges: All of its exchanges.
            parts: The summaries of all of its parts, which are shown in their place; none shows the exchanges.

        Raises:
            BackendError: None answered in time, or the answer has no summary.
            StorageError: Memory.md or the notes cannot be read.
            DeskUnusable: A newer version of the program wrote the notes.
            Exception: Whatever the router raises when none can be asked.
        """
        limits = self._limits
        memory = await self._disk.run(self._memory.read) if self._memory else MemoryText('', '')
        notes = await self._disk.run(self._notes.read, session_id) if self._notes else []
        instruction = review_request.review_instruction(
            self._desk,
            session_id,
            memory=memory.text,
            notes=notes,
            notes_budget=limits.review_chars // 4,
            in_parts=bool(parts),
            summary_budget=limits.summary_budget,
            memory_budget=limits.memory_budget,
        )
        schema = review_request.review_schema(limits.summary_budget, limits.memory_budget)
        shown = day_parts.as_exchanges(parts, exchanges) if parts else exchanges
        reply = await self._ask(session_id, shown, instruction, schema)
        check = partial(
            checked,
            _summary_in(reply, session_id),
            split_session_id(session_id)[0],
            exchanges,
            [*notes, memory.text],
            limits.summary_budget,
        )
        summary = await anyio.to_thread.run_sync(check)
        return Review(
            summary=summary.text,
            unproved=summary.unproved,
            memory=_text(reply, 'memory'),
            memory_digest=memory.digest,
            backend=reply.backend,
            reasons=_text(reply, 'reasons'),
        )

    async def shorter(self, session_id: str, review: Review) -> Review:
        """Returns a review whose Memory.md was asked for again, because it was too long.

        Raises:
            BackendError: None answered in time.
            Exception: Whatever the router raises when none can be asked.
        """
        budget = self._limits.memory_budget
        instruction = review_request.shorter_instruction(self._desk, session_id, review.memory, budget)
        reply = await self._ask(session_id, (), instruction, review_request.shorter_schema(budget))
        memory = _text(reply, 'memory')
        if not memory.strip():
            return msgspec.structs.replace(review, shortened=True)
        reasons = f'{review.reasons} {_text(reply, "reasons")}'.strip()
        return msgspec.structs.replace(review, shortened=True, memory=memory, reasons=reasons)

    async def without_model(self, session_id: str, exchanges: Sequence[Exchange]) -> Review:
        """Returns what can be said of a session when no model can be asked."""
        # What came before stands in its own summary, and not in this one again.
        bare = [replace(exchange, trigger_text=carry.message_in(exchange.trigger_text)) for exchange in exchanges]
        notes: list[str] = []
        if self._notes is not None:
            try:
                notes = await self._disk.run(self._notes.read, session_id)
            except Exception:  # noqa: BLE001 - the session is rolled over now; they are read again for the full summary
                notes = []
        return Review(storable(summary_without_model(bare, self._limits.summary_budget, notes)), degraded=True)

    async def _ask(
        self, session_id: str, exchanges: Sequence[Exchange], instruction: str, schema: dict[str, Any]
    ) -> Reply:
        with anyio.move_on_after(self._limits.review_seconds) as within:
            return await self._router.ask(exchanges, instruction, schema)
        assert within.cancelled_caught  # noqa: S101 - it returned otherwise
        raise BackendError(f'no review of {session_id} within {self._limits.review_seconds:g} s')


def _summary_in(reply: Reply, session_id: str) -> str:
    summary = _text(reply, 'summary').strip()
    if not summary:
        raise BackendError(f'the review of {session_id} has no summary')
    return summary


def _text(reply: Reply, name: str) -> str:
    value = reply.data.get(name)
    return storable(value) if isinstance(value, str) else ''
