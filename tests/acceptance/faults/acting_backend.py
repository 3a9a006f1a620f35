"""A backend that acts: it does something that cannot be taken back once for each message, and says so."""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio

from trading_agent.routing.turn_runner import TextPiece, ToolCalled, ToolReturned, Turn, TurnAnswered, TurnEvent

ACTED = 'Done.'


class Acting:
    """Writes the id of each trigger into a file; what was cut off after that is only taken note of.

    Args:
        effects: The file.
        pause: How long it takes for each step, in seconds.
    """

    def __init__(self, effects: str, pause: float) -> None:
        self._effects = effects
        self._pause = pause

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        await anyio.sleep(self._pause)
        if turn.schema is not None:
            fields = turn.schema['properties']
            answer = {name: [] if field['type'] == 'array' else f'{name}: acted' for name, field in fields.items()}
            yield TurnAnswered(json.dumps(answer | {'memory': ''} if 'memory' in fields else answer))
        elif turn.trigger_id.startswith('unknown-'):
            yield TurnAnswered('I leave it at that.')
        else:
            yield TextPiece('I act. ')
            yield ToolCalled('c1', 'act', {'for': turn.trigger_id})
            act(self._effects, turn.trigger_id)
            await anyio.sleep(self._pause)
            yield ToolReturned('c1', ACTED)
            yield TurnAnswered(f'I act. {ACTED}')


def act(effects: str, trigger_id: str) -> None:
    """Does it."""
    descriptor = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f'{trigger_id}\n'.encode())
    os.close(descriptor)


def make(_: str, options: dict[str, Any]) -> Acting:
    """Makes a backend of this kind."""
    return Acting(options['effects'], options['pause'])
