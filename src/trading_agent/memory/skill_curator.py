"""Looks at a desk's own skills when a day is over: what it taught is proposed as a new, revised or archived skill."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import get_args

from trading_agent.clock import utc_text
from trading_agent.disk import Disk
from trading_agent.memory import day_parts, skill_request
from trading_agent.memory.curated import Curated
from trading_agent.memory.damage import Damage
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.review import Asker, Limits
from trading_agent.memory.rollover import clipped
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.skill_folder import (
    SkillRefused,
    digest_of,
    read_skill,
    skill_data,
    skill_list,
    skill_text,
)
from trading_agent.memory.skill_ledger import Mode, Proposal, SkillChange, proposal_id, turned_down
from trading_agent.memory.skill_store import SkillStore, StaleChange
from trading_agent.trigger import storable

MOST_CHANGES = 3
"""Most changes that one review proposes; what a model asks for beyond that is left out."""

MOST_WAITING = 20
"""With so many changes waiting for a person no more are asked for."""

_LONGEST_REASON = 1000
_ACTIONS: tuple[SkillChange, ...] = get_args(SkillChange)


class SkillCurator:
    """Reviews one desk's own skills after each day's summary.

    Args:
        desk_name: The desk.
        folder: The desk's folder.
        router: Who is asked.
        store: The desk's sessions folder.
        mode: `propose`: a person approves each change; `apply`: it is made at once. Both can be reverted.
        limits: How much of a day is shown.
        disk: Where file work is done; None for one of its own.
        now: Returns the time.
        on_damage: Is told of each damaged part of what was done and proposed, once; None logs it.
    """

    def __init__(
        self,
        desk_name: str,
        folder: Path,
        router: Asker,
        store: SessionStore,
        *,
        mode: Mode = 'propose',
        limits: Limits | None = None,
        disk: Disk | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self._desk_name = desk_name
        self._folder = folder
        self._router = router
        self._store = store
        self._mode = mode
        self._limits = limits or Limits()
        self._disk = disk or Disk()
        self._now = now
        self._skills = SkillStore(folder, now, on_damage=on_damage)

    async def review(self, trading_date: date) -> Curated:
        """Asks what a day has taught about the skills, and proposes it, or does it.

        Called again after a crash it goes on: a change is known by what it is, and none is proposed or made twice.

        Args:
            trading_date: The day, whose last session is looked at.

        Returns:
            What came of it.

        Raises:
            BackendError: None could answer.
            StorageError: The skills cannot be read or written.
            DeskUnusable: A newer version of the program wrote the ledger.
            Exception: Whatever the router raises when none can be asked.
        """
        applied = await self._disk.run(self._finish) if self._mode == 'apply' else 0
        session_id, exchanges = await self._disk.run(self._last_session, trading_date)
        waiting = await self._disk.run(self._skills.proposals)
        if not exchanges or len(waiting) >= MOST_WAITING:
            return Curated(applied=applied)
        shown = exchanges
        if day_parts.size_of(exchanges) > self._limits.review_chars:
            shown = _newest(exchanges, self._limits.review_chars)
        instruction = await self._disk.run(
            self._instruction, trading_date, '' if shown is exchanges else session_id, waiting
        )
        reply = await self._router.ask(shown, instruction, skill_request.schema())
        actions = reply.data.get('actions')
        wanted = actions[:MOST_CHANGES] if isinstance(actions, list) else []
        made = await self._disk.run(self._take, trading_date, wanted)
        return Curated(made.proposed, made.applied + applied, made.refused)

    def _finish(self) -> int:
        """Makes the changes that a crash came before; what is stale by now is left to a person."""
        left = [proposal for proposal in self._skills.proposals() if proposal.mode == 'apply']
        return sum(self._skills.propose(proposal, 'curator') and self._apply(proposal) for proposal in left)

    def _apply(self, proposal: Proposal) -> bool:
        try:
            self._skills.approve(proposal.id, 'curator')
        except StaleChange:
            return False
        return True

    def _last_session(self, trading_date: date) -> tuple[str, list[Exchange]]:
        for session_id in self._store.session_ids():
            if split_session_id(session_id)[0] == trading_date and (found := self._store.exchanges(session_id)):
                return session_id, found
        return '', []

    # -- asking ------------------------------------------------------------------------------------------------

    def _instruction(self, trading_date: date, summarised: str, waiting: Sequence[Proposal]) -> str:
        sections = self._store.summary_sections(trading_date) if summarised else []
        summary = '\n\n'.join(section.text for section in sections if section.session_id == summarised)
        return skill_request.instruction(
            self._desk_name,
            trading_date,
            most=MOST_CHANGES,
            summary=summary,
            skills=self._skills_in_words(self._limits.review_chars // 4),
            waiting=waiting,
            unwanted=list(turned_down(self._skills.records()).values()),
        )

    def _skills_in_words(self, budget: int) -> str:
        """Returns the skills with their texts; those that do not fit with their descriptions alone."""
        told = []
        for skill in skill_list(self._folder):
            try:
                text = read_skill(self._folder, skill.name).strip()
            except SkillRefused:  # changed in this moment
                continue
            if len(text) > budget:
                text = f'{skill.name}: {skill.description} (the text is left out)'
            budget -= len(text)
            told.append(text)
        return '\n\n'.join(told)

    # -- taking what is asked for ------------------------------------------------------------------------------

    def _take(self, trading_date: date, actions: Sequence[object]) -> Curated:
        proposed = applied = refused = 0
        for action in actions:
            try:
                proposal = self._proposal(trading_date, action)
                is_new = self._skills.propose(proposal, 'curator')
            except SkillRefused:
                refused += 1
                continue
            if is_new and self._mode == 'apply' and self._apply(proposal):
                applied += 1
            elif is_new:
                proposed += 1
        return Curated(proposed, applied, refused)

    def _proposal(self, trading_date: date, action: object) -> Proposal:
        """Returns what a model asked for as a change that can be made.

        Raises:
            SkillRefused: It cannot be made.
        """
        fields = action if isinstance(action, dict) else {}
        kind, name, description, body, reason = (
            storable(value) if isinstance(value := fields.get(field), str) else ''
            for field in ('action', 'name', 'description', 'body', 'reason')
        )
        change = next((known for known in _ACTIONS if known == kind), None)
        if change is None:
            raise SkillRefused(f'{kind[:80]!r} is nothing that is done to a skill')
        old = skill_data(self._folder, name)
        if (old is None) != (change == 'create'):
            raise SkillRefused(f'{change} {name}: there is {"no" if old is None else "a"} skill of that name')
        text = b'' if change == 'archive' else skill_text(name, description, body, old)
        base = '' if old is None else digest_of(old)
        if text == old:
            raise SkillRefused(f'{name} says that already')
        return Proposal(
            proposal_id(trading_date, change, name, base, digest_of(text) if text else ''),
            utc_text(self._now()),
            change,
            name,
            text.decode(),
            base,
            clipped(' '.join(reason.split()), _LONGEST_REASON),
            self._mode,
        )


def _newest(exchanges: Sequence[Exchange], budget: int) -> list[Exchange]:
    shown: list[Exchange] = []
    for exchange in reversed(exchanges):
        budget -= day_parts.size_of([exchange])
        if budget < 0:
            break
        shown.append(exchange)
    return shown[::-1]
