"""How a backend runs a turn: the contract between the router and whatever answers.

A runner is given one `Turn` and yields what happens as it happens, the answer last. It keeps nothing that must
survive: what it needs to resume it returns as `runner_state`, and gets it back with the next turn.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

import msgspec

from trading_agent.memory.exchange import Exchange


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
    runner_state: dict[str, Any] | None = None
    schema: dict[str, Any] | None = field(default=None)


class TurnEvent(msgspec.Struct, frozen=True, tag_field='type'):
    """The base of what a runner yields."""


class TextPiece(TurnEvent, frozen=True, tag='text_piece'):
    """A piece of the answer, as it comes."""

    text: str


class ToolCalled(TurnEvent, frozen=True, tag='tool_call'):
    """A tool is being called."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolReturned(TurnEvent, frozen=True, tag='tool_result'):
    """A tool has answered."""

    id: str
    content: str
    is_error: bool = False


class UsageCounted(TurnEvent, frozen=True, tag='usage'):
    """Tokens that the turn has used since the last count."""

    input_tokens: int = 0
    output_tokens: int = 0


class TurnAnswered(TurnEvent, frozen=True, tag='answer'):
    """The whole answer; always the last event. `runner_state` can be written as JSON."""

    answer: str
    runner_state: dict[str, Any] | None = None


class TurnRunner(Protocol):
    """What a backend brings."""

    def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        """Runs one turn and yields its events, `TurnAnswered` last.

        Raises:
            BackendError: This backend cannot answer; another one may. Any other exception counts as this.
            TurnRefused: The request itself was refused; no backend could answer it.
        """
        ...
