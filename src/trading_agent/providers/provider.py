"""How a stateless model API is spoken to: the contract between a conversation and whatever answers it.

A provider is sent the whole conversation with each request and keeps nothing of it.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trading_agent.messages import Message
from trading_agent.turn_events import TurnEvent


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a model is told of it.

    Attributes:
        name: Its name.
        description: What it is for.
        parameters: The JSON Schema of its arguments, an object.
    """

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    Attributes:
        model: Which model; empty for the provider's own choice.
        messages: The conversation, oldest first; the last one is a user's message or a tool's result.
        system: What stands above the conversation, or None.
        tools: What the model may call.
        schema: The JSON Schema that the answer must fulfil, an object; None for plain text.
        temperature: How freely it answers, or None for the provider's own choice.
        max_tokens: The longest answer, in tokens, or None.
        metadata: What the caller wants to pass on beside the conversation.
    """

    model: str
    messages: Sequence[Message]
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    schema: dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class Stopped(TurnEvent, frozen=True, tag='stopped'):
    """The model has finished; always the last event of a request, and a stream without it was cut.

    Attributes:
        reason: Why: `end_turn`, `tool_use`, `max_tokens`, or a provider's own word.
        model: Which model answered.
    """

    reason: str
    model: str = ''


class Provider(Protocol):
    """What a model API brings."""

    def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        """Sends one request and yields `TextPiece`, `ToolCalled` and `UsageCounted` as they come, `Stopped` last.

        Raises:
            BackendError: It cannot answer; another provider may.
            TurnRefused: The request itself was refused.
        """
        ...
