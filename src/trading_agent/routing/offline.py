"""The built-in `offline` backend: no key, no network, no model, and it says so. Also for drills and tests."""

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from trading_agent.config import OfflineOptions
from trading_agent.errors import BackendError
from trading_agent.providers.extract import day_summary, folded_memory
from trading_agent.providers.offline import answer, pieces
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent
from trading_agent.trigger import storable

_SUMMARY_BUDGET = 6000
_MEMORY_BUDGET = 12000
_DEEPEST = 4  # objects within objects
_LONGEST_CHAIN = 8  # references to references
_REASONS = 'No model was asked: the lines were chosen by their words.'
_EMPTY: dict[str, Any] = {'string': '', 'integer': 0, 'number': 0, 'boolean': False, 'array': [], 'null': None}


class OfflineRunner:
    """Answers each turn from the desk's own exchanges and Memory.md; the same turn always gets the same answer.

    It keeps no session and uses no tokens.

    Args:
        name: The backend's name in the configuration.
        options: How long it takes, and which calls fail or hang. All calls of this runner are counted, questions
            beside the session too; a call that is to fail and to hang fails.
    """

    def __init__(self, name: str, options: OfflineOptions | None = None) -> None:
        self._name = name
        self._options = options or OfflineOptions()
        self._calls = 0

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        """Answers one turn in pieces; a question beside the session in one JSON object and no pieces.

        An empty schema asks for plain text. In another one `summary`, `memory` and `reasons` are filled in where they
        are text, and all others are empty after their type. A `maxLength` is the budget of the first two.

        Raises:
            BackendError: `fail_every` asked for it.
        """
        self._calls += 1
        call = self._calls
        await anyio.sleep(self._options.delay)
        await self._drill(call)
        if turn.schema is not None:
            # A whole day is read: in a thread, so that the other desks go on.
            yield TurnAnswered(storable(await anyio.to_thread.run_sync(_beside, turn.schema, turn)))
            return
        text = storable(answer(turn.text, turn.exchanges, turn.memory))
        for number, piece in enumerate(pieces(text)):
            if number and self._options.chunk_delay:
                await anyio.sleep(self._options.chunk_delay)
            else:
                await anyio.lowlevel.checkpoint()
            yield TextPiece(piece)
        yield TurnAnswered(text)

    async def _drill(self, call: int) -> None:
        if self._options.fail_every and call % self._options.fail_every == 0:
            raise BackendError(
                f'the offline backend {self._name!r} failed call {call}, as it was told to',
                f'a drill: take fail_every = {self._options.fail_every} out of [backends.{self._name}] to end it',
            )
        if self._options.hang_every and call % self._options.hang_every == 0:
            await anyio.sleep_forever()


def _beside(schema: dict[str, Any], turn: Turn) -> str:
    if not schema:
        return answer(turn.text, turn.exchanges, turn.memory)
    return json.dumps(_filled(schema, turn), ensure_ascii=False)


def _filled(schema: dict[str, Any], turn: Turn) -> dict[str, object]:
    """Returns an object of the schema, its known properties filled from the turn and the others empty."""
    filled: dict[str, object] = {}
    for name, part in _table(_resolved(schema, schema).get('properties')).items():
        inner = _resolved(part, schema)
        limit = inner.get('maxLength')
        if inner.get('type') != 'string' or 'enum' in inner or 'const' in inner:
            filled[name] = _empty(part, schema)
        elif name == 'summary':
            filled[name] = day_summary(turn.exchanges, limit if isinstance(limit, int) else _SUMMARY_BUDGET)
        elif name == 'memory':
            budget = limit if isinstance(limit, int) else _MEMORY_BUDGET
            filled[name] = folded_memory(turn.memory, turn.exchanges, turn.trading_date, budget)
        elif name == 'reasons':
            filled[name] = _REASONS if not isinstance(limit, int) or limit >= len(_REASONS) else ''
        else:
            filled[name] = _empty(part, schema)
    return filled


def _empty(part: object, schema: dict[str, Any], depth: int = 0) -> object:
    """Returns the emptiest value that a part of a schema allows."""
    if any(_table(choice).get('type') == 'null' for choice in _alternatives(_table(part))):
        return None
    inner = _resolved(part, schema)
    if 'const' in inner:
        return inner['const']
    if inner.get('enum'):
        return inner['enum'][0]
    kind = inner.get('type')
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind != 'object':
        return copy.copy(_EMPTY.get(str(kind)))
    parts = _table(inner.get('properties')) if depth < _DEEPEST else {}
    return {name: _empty(inside, schema, depth + 1) for name, inside in parts.items()}


def _resolved(part: object, schema: dict[str, Any]) -> dict[str, Any]:
    """Follows `$ref` (`#/$defs/Name`, as msgspec writes it) and takes the first of alternatives that is not null."""
    table = _table(part)
    for _ in range(_LONGEST_CHAIN):
        if isinstance(table.get('$ref'), str):
            found: object = schema
            for step in table['$ref'].removeprefix('#').strip('/').split('/'):
                found = _table(found).get(step)
            table = _table(found)
        elif choices := _alternatives(table):
            table = next((choice for choice in map(_table, choices) if choice.get('type') != 'null'), {})
        else:
            break
    return table


def _alternatives(table: dict[str, Any]) -> list[object]:
    choices = table.get('anyOf') or table.get('oneOf')
    return choices if isinstance(choices, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
