"""What happens while a turn is answered, in the order in which it happens: told by providers, sessions and runners."""

from typing import Any

import msgspec


class TurnEvent(msgspec.Struct, frozen=True, tag_field='type'):
    """The base of what a turn yields."""


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
    """Tokens that the turn has used since the last count; see `messages.Usage` for the kinds."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class DigestMade(TurnEvent, frozen=True, tag='digest'):
    """The oldest exchanges no longer fit into the model's context, and are told in short from now on.

    Attributes:
        text: The digest, of all exchanges that are folded.
        exchanges: How many these are, from the session's first on.
        by_model: Whether a model wrote it; else it was made by rule.
    """

    text: str
    exchanges: int
    by_model: bool = True


class TurnAnswered(TurnEvent, frozen=True, tag='answer'):
    """The whole answer; always the last event. `runner_state` can be written as JSON."""

    answer: str
    runner_state: dict[str, Any] | None = None
    model: str = ''
    stop_reason: str | None = None
