"""Folds what a session taught into Memory.md: never over a person's edit, and never at the price of what was there."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from trading_agent.disk import Disk
from trading_agent.events import Event, MemoryRefused, MemoryUpdated
from trading_agent.memory import memory_check
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.memory_check import Refusal
from trading_agent.memory.memory_file import MemoryEdited, MemoryFile, MemoryText
from trading_agent.memory.review import Limits, Reviewer
from trading_agent.memory.rollover import Review, SummaryPart

_TRIES = 3


async def keep_nothing(_: Review) -> None:
    """For a fold whose answers need not survive a crash."""


@dataclass(frozen=True, kw_only=True)
class MemoryFold:
    """Folds reviews into one desk's Memory.md.

    Attributes:
        desk: The desk's name.
        publish: Where events go.
        reviewer: Asks for reviews.
        memory: The desk's Memory.md, or None to fold nothing.
        limits: Bounds.
        disk: Where file work is done.
    """

    desk: str
    publish: Callable[[Event], None]
    reviewer: Reviewer
    memory: MemoryFile | None
    limits: Limits
    disk: Disk

    async def fold(
        self,
        session_id: str,
        review: Review,
        exchanges: Sequence[Exchange],
        parts: Sequence[SummaryPart] = (),
        keep: Callable[[Review], Awaitable[None]] = keep_nothing,
    ) -> None:
        """Replaces Memory.md by what the review made of it.

        The new text is made again on what a person wrote meanwhile, and asked for again, once, when it is too long.
        One that may not take the old one's place is kept in the history, and told.

        Args:
            session_id: The session that was reviewed.
            review: What was made of it.
            exchanges: Its exchanges.
            parts: The summaries of its parts, where it was reviewed in parts.
            keep: Is given a review that was made anew before it is used, so that a crash asks for no third one.

        Raises:
            StorageError: Memory.md cannot be read or written; its text stays.
            DeskUnusable: A newer version of the program wrote its history.
        """
        if self.memory is None:
            return
        tries = _TRIES
        while review.memory.strip():
            before = await self.disk.run(self.memory.read)
            refusal = self._refusal(before, review)
            if refusal is not None:
                anew = await self._shorter(session_id, review)
                if anew is None:
                    await self._refuse(self.memory, session_id, review, refusal)
            else:
                try:
                    changed = await self.disk.run(
                        self.memory.replace, session_id, review.memory, review.memory_digest, review.reasons
                    )
                except MemoryEdited:
                    tries -= 1
                    anew = await self._anew(session_id, exchanges, parts, last=not tries)
                else:
                    if changed:
                        self._tell_updated(session_id, before, review)
                    return
            if anew is None:
                return
            review = anew
            await keep(review)

    def _refusal(self, before: MemoryText, review: Review) -> Refusal | None:
        if before.digest != review.memory_digest:
            return None  # edited meanwhile, or here already: both are seen when it is replaced
        return memory_check.refusal(before.text, review.memory, self.limits.memory_budget)

    async def _anew(
        self, session_id: str, exchanges: Sequence[Exchange], parts: Sequence[SummaryPart], *, last: bool
    ) -> Review | None:
        """Returns a review made on what a person wrote, or None where there is none, which is told."""
        if last:
            error = 'it was edited again and again while a new text was made'
        else:
            try:
                return await self.reviewer.review(session_id, exchanges, parts)
            except Exception as failure:  # noqa: BLE001 - told; the person's text stays
                error = f'a person edited it, and a new fold failed: {failure}'
        self._tell_refused(session_id, error, 'add by hand what the session taught')
        return None

    async def _shorter(self, session_id: str, review: Review) -> Review | None:
        """Returns a review that was asked for again, or None where that is no use."""
        if review.shortened or not memory_check.is_too_long(review.memory, self.limits.memory_budget):
            return None
        try:
            return await self.reviewer.shorter(session_id, review)
        except Exception:  # noqa: BLE001 - the router tells it, and what is too long is told now
            return None

    async def _refuse(self, memory: MemoryFile, session_id: str, review: Review, refusal: Refusal) -> None:
        kept = await self.disk.run(memory.keep_refused, session_id, review.memory, review.memory_digest, refusal.why)
        self._tell_refused(session_id, refusal.why, f'{refusal.hint}; the refused text is in {kept}')

    def _tell_refused(self, session_id: str, error: str, hint: str) -> None:
        hint = f'Memory.md stays as it is; {hint}'
        self.publish(MemoryRefused(desk=self.desk, session_id=session_id, error=error, hint=hint))

    def _tell_updated(self, session_id: str, before: MemoryText, review: Review) -> None:
        length, previous_length = len(review.memory), len(before.text)
        self.publish(
            MemoryUpdated(desk=self.desk, session_id=session_id, length=length, previous_length=previous_length)
        )
