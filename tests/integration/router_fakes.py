"""A desk's router on real files, and backends that are scripts."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from keeper_fakes import MONDAY_MORNING

from trading_agent.clock import ManualClock
from trading_agent.conversation.records import AnyLine, records
from trading_agent.events import Event, ModelCallFailed
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_store import SessionStore
from trading_agent.routing.model_router import ModelRouter
from trading_agent.routing.turn_runner import Turn, TurnAnswered, TurnEvent, TurnRunner
from trading_agent.trigger import Trigger


class Scripted:
    """A runner that yields what it was given; an exception in it is raised, and a callable is awaited.

    Attributes:
        turns: What it was asked.
        closed: How often a run of it came to its end, in whatever way.
    """

    def __init__(self, *script: Any) -> None:  # noqa: ANN401 - events, exceptions and callables
        self.script: Sequence[Any] = script
        self.turns: list[Turn] = []
        self.closed = 0

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        self.turns.append(turn)
        try:
            for step in self.script:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, TurnEvent):
                    yield step
                else:
                    await step()
        finally:
            self.closed += 1


def says(text: str, state: dict[str, Any] | None = None) -> Scripted:
    """Returns a runner that answers this."""
    return Scripted(TurnAnswered(text, state))


class Desk:
    """A router with its store, and what it told."""

    def __init__(self, folder: Path, *runners: TurnRunner, clock: ManualClock | None = None, **options: Any) -> None:  # noqa: ANN401 - as ModelRouter takes them
        self.events: list[Event] = []
        self.clock = clock or ManualClock(MONDAY_MORNING)
        self.store = SessionStore(folder / 'sessions', lambda: self.clock.trusted_date(timedelta()))
        names = ['claude', 'gpt', 'third'][: len(runners)]
        self.router = ModelRouter(
            'main', self.store, list(zip(names, runners, strict=True)), self.events.append, self.clock, **options
        )

    async def run(self, text: str = 'news', *, attempt: int = 1) -> Exchange:
        if self.router.session_id is None:
            await self.router.restore_session()
        return await self.router.run(Trigger(text, 'main', id='t1', received_at=self.clock.now()), attempt=attempt)

    def cool_down(self) -> None:
        """Lets every backend's cool-down be over."""
        for backend in self.router._backends:
            backend.health._until = 0.0

    def failures(self) -> list[ModelCallFailed]:
        return [event for event in self.events if isinstance(event, ModelCallFailed)]

    def log(self) -> list[str]:
        return [exchange.answer for exchange in self.store.exchanges(self.router.session_id or '')]

    @property
    def journal_path(self) -> Path:
        """The current session's journal."""
        return self.store.directory.parent / 'journal' / f'{self.router.session_id}.jsonl'

    def journal(self) -> list[AnyLine]:
        """Returns what the current session's journal has."""
        return list(records(self.journal_path))
