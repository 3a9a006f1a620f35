"""How a call of a tool ended."""

from dataclasses import dataclass

from trading_agent.errors import TradingAgentError


@dataclass(frozen=True)
class ToolOutcome:
    """What a call of an MCP tool came to.

    Attributes:
        text: What the model is told.
        is_error: Whether the call failed.
    """

    text: str
    is_error: bool = False


class ToolError(TradingAgentError):
    """Raised where a tool did not do what was asked: the model is told why, and the turn goes on."""
