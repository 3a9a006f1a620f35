"""A backend that fails with all that it knows in its error; a plug-in."""

import json
from collections.abc import AsyncIterator
from typing import Any

from trading_agent.errors import BackendError
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent


class Indiscreet:
    """Repeats its token and what was said in its failures, as a library may.

    Args:
        token: Its token.
        way: How it fails: `own-error`, `foreign-error`, or `nonsense` in answer to a review.
    """

    def __init__(self, token: str, way: str) -> None:
        self._token = token
        self._way = way

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        told = f'token={self._token}: while sending {turn.text!r} to {turn.memory!r}'
        if self._way == 'own-error':
            raise BackendError(told, hint=told)
        if self._way == 'foreign-error':
            raise KeyError(told)
        if turn.schema is not None:
            yield TurnAnswered(json.dumps([exchange.trigger_text for exchange in turn.exchanges] or [turn.text]))
            return
        yield TextPiece('noted')
        yield TurnAnswered('noted')


def indiscreet(_: str, options: dict[str, Any]) -> Indiscreet:
    """Makes a backend of this kind."""
    return Indiscreet(options['token'], options['way'])
