"""What a session leaves behind: its summary and what of it goes into Memory.md, asked of a model within bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio

from trading_agent.errors import BackendError
from trading_agent.files import Disk
from trading_agent.memory import carry
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.memory_file import MemoryFile, MemoryText
from trading_agent.memory.rollover import (
    REVIEW_INSTRUCTION,
    Review,
    clipped,
    review_schema,
    summary_without_model,
)
from trading_agent.trigger import storable


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a review may say, and how long it may take.

    Attributes:
        summary_budget: The longest summary, in characters.
        memory_budget: The longest Memory.md, in characters.
        carry_summaries: Most sessions whose summaries a new one begins with.
        review_seconds: How long all backends together may take.
        curator_seconds: How long the skill curator may take.
    """

    summary_budget: int = 6000
    memory_budget: int = 12000
    carry_summaries: int = 3
    review_seconds: float = 180.0
    curator_seconds: float = 180.0


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
    """

    def __init__(self, desk: str, router: Asker, memory: MemoryFile | None, limits: Limits, disk: Disk) -> None:
        self._desk = desk
        self._router = router
        self._memory = memory
        self._limits = limits
        self._disk = disk

    async def review(self, session_id: str, exchanges: Sequence[Exchange]) -> Review:
        """Returns what a model makes of a session.

        Raises:
            BackendError: None answered in time, or the answer has no summary.
            StorageError: Memory.md cannot be read.
            Exception: Whatever the router raises when none can be asked.
        """
        memory = await self._disk.run(self._memory.read) if self._memory else MemoryText('', '')
        instruction = REVIEW_INSTRUCTION.format(
            session_id=session_id,
            desk=self._desk,
            summary_budget=self._limits.summary_budget,
            memory_budget=self._limits.memory_budget,
            memory=memory.text or '(empty)',
        )
        schema = review_schema(self._limits.summary_budget, self._limits.memory_budget)
        with anyio.move_on_after(self._limits.review_seconds) as within:
            reply = await self._router.ask(exchanges, instruction, schema)
        if within.cancelled_caught:
            raise BackendError(f'no review of {session_id} within {self._limits.review_seconds:g} s')
        summary, new_memory = reply.data.get('summary'), reply.data.get('memory')
        if not isinstance(summary, str) or not summary.strip():
            raise BackendError(f'the review of {session_id} has no summary')
        return Review(
            summary=clipped(storable(summary.strip()), self._limits.summary_budget),
            memory=storable(new_memory) if isinstance(new_memory, str) else '',
            memory_digest=memory.digest,
            backend=reply.backend,
        )

    async def review_or_degraded(self, session_id: str, exchanges: Sequence[Exchange]) -> Review:
        """Returns what a model makes of a session, or, when none can be asked, what can be said without one."""
        try:
            return await self.review(session_id, exchanges)
        except Exception:  # noqa: BLE001 - whatever it was (the router tells it), the session is rolled over now
            # What came before stands in its own summary, and not in this one again.
            bare = [replace(exchange, trigger_text=carry.message_in(exchange.trigger_text)) for exchange in exchanges]
            summary = storable(summary_without_model(bare, self._limits.summary_budget))
            return Review(summary=summary, degraded=True)
