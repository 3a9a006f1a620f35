"""A backend whose model places one order for each message, and a desk that it can do so with."""

from collections.abc import AsyncIterator
from typing import Any

import anyio

from trading_agent.messages import ToolResultMessage
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.routing.provider_runner import ModelSettings, ProviderRunner
from trading_agent.turn_events import TextPiece, ToolCalled, TurnEvent


class Ordering:
    """Orders what a message asks for, once, and then says so; of what was cut off it orders nothing.

    Args:
        pause: How long it takes for each step, in seconds.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause

    async def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        await anyio.sleep(self._pause)
        last = request.messages[-1]
        if isinstance(last, ToolResultMessage):
            yield TextPiece(f'Done: {last.content}')
        elif request.schema is not None:
            yield TextPiece('{"summary": "orders", "memory": "", "reasons": ""}')
        elif 'was cut off after these calls' in getattr(last, 'content', ''):
            yield TextPiece('I leave it at that.')
        else:
            yield TextPiece('I order. ')
            await anyio.sleep(self._pause)
            yield ToolCalled('c1', 'broker__order', {'symbol': 'ABC', 'quantity': 1, 'pause': self._pause})
            yield Stopped('tool_use', 'ordering')
            return
        yield Stopped('end_turn', 'ordering')


def make(_: str, options: dict[str, Any]) -> ProviderRunner:
    """Makes a backend of this kind."""
    return ProviderRunner(Ordering(options['pause']), settings=ModelSettings())
