"""How a backend runs a turn: the contract between the router and whatever answers.

A runner is given one `Turn` and yields what happens as it happens, the answer last. It keeps nothing that must
survive: what it needs to resume it returns as `runner_state`, and gets it back with the next turn.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Protocol

from trading_agent.conversation.tools import Tool
from trading_agent.memory.exchange import Exchange
from trading_agent.turn_events import (
    DigestMade,
    TextPiece,
    ToolCalled,
    ToolReturned,
    TurnAnswered,
    TurnEvent,
    UsageCounted,
)

__all__ = [
    'DigestMade',
    'TextPiece',
    'ToolCalled',
    'ToolReturned',
    'Turn',
    'TurnAnswered',
    'TurnEvent',
    'TurnRunner',
    'UsageCounted',
]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One thing that a backend is to answer.

    Attributes:
        desk: The desk's name.
        session_id: The session that the turn belongs to.
        trading_date: The session's India date.
        text: What the desk is told.
        exchanges: The session so far, oldest first.
        exchanges_seen: How many of them this backend's own session holds already, for a runner that keeps one: the
            others go in front of the text. It may be lower than the truth after a crash, never higher.
        memory: The text of Memory.md; empty where there is none.
        instructions: The text of AGENTS.md, which people write; empty where there is none.
        skills: The name and the description of each of the desk's skills.
        tools: What the model may call; empty for a question beside the session.
        trigger_id: The trigger; empty for a question beside the session.
        attempt: How often the trigger has been started, this time included.
        started_at: When the turn began; the exchange will say the same.
        runner_state: What this backend's runner returned last in this session, or None.
        schema: None for a turn of the desk. A JSON Schema makes it a question beside the session: the answer is one
            JSON object of that schema, and becomes no exchange.
    """

    desk: str
    session_id: str
    trading_date: date
    text: str
    exchanges: Sequence[Exchange] = ()
    exchanges_seen: int = 0
    memory: str = ''
    instructions: str = ''
    skills: Sequence[tuple[str, str]] = ()
    tools: Sequence[Tool] = ()
    trigger_id: str = ''
    attempt: int = 1
    started_at: datetime | None = None
    runner_state: dict[str, Any] | None = None
    schema: dict[str, Any] | None = field(default=None)


class TurnRunner(Protocol):
    """What a backend brings.

    One that has an attribute `acts_by_itself` that is true is a program with tools of its own: its whole turn counts
    as one call that may have effects.
    """

    def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        """Runs one turn and yields its events, `TurnAnswered` last.

        Raises:
            BackendError: This backend cannot answer; another one may. Any other exception counts as this.
            TurnRefused: The request itself was refused; no backend could answer it.
        """
        ...
