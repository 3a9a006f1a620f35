"""The `offline` provider's answers by a schema: filled from the conversation where it can be, empty elsewhere."""

from collections.abc import Sequence
from datetime import date
from typing import Any, TypeGuard

from trading_agent.providers.extract import day_summary, folded_memory
from trading_agent.providers.heard import Heard

_SUMMARY_BUDGET = 6000
_MEMORY_BUDGET = 12000
_DEEPEST = 4  # objects within objects
_LONGEST_CHAIN = 8  # references to references
_MOST_ITEMS = 100
_REASONS = 'No model was asked: the lines were chosen by their words.'
_EMPTY_FORMATS = {
    'date-time': '1970-01-01T00:00:00Z',
    'date': '1970-01-01',
    'time': '00:00:00Z',
    'duration': 'PT0S',
    'decimal': '0',
    'uuid': '00000000-0000-0000-0000-000000000000',
}


def filled(schema: dict[str, Any], heard: Sequence[Heard], memory: str, trading_date: date) -> object:
    """Returns a value of the schema, as far as that can be without a model.

    In an object `summary`, `memory` and `reasons` are filled in where they are text; a `maxLength` is the budget of
    the first two. Everything else is as empty as its type, its enumeration and its bounds allow.

    Args:
        schema: A JSON Schema. One that is damaged, or that refers to itself alone, gets an empty object.
        heard: The conversation so far, oldest first.
        memory: The text of Memory.md.
        trading_date: The day.
    """
    root = _resolved(schema, schema)
    if not root and _alternatives(schema):
        return None  # nothing but null is left to choose
    if root.get('type', 'object') != 'object' or 'enum' in root or 'const' in root:
        return _empty(root, schema)
    values: dict[str, object] = {}
    for name, part in _table(root.get('properties')).items():
        inner = _resolved(part, schema)
        limit = inner.get('maxLength')
        if inner.get('type') != 'string' or 'enum' in inner or 'const' in inner:
            values[name] = _empty(part, schema)
        elif name == 'summary':
            values[name] = day_summary(heard, limit if isinstance(limit, int) else _SUMMARY_BUDGET)
        elif name == 'memory':
            budget = limit if isinstance(limit, int) else _MEMORY_BUDGET
            values[name] = folded_memory(memory, heard, trading_date, budget)
        elif name == 'reasons':
            values[name] = _REASONS if not isinstance(limit, int) or limit >= len(_REASONS) else ''
        else:
            values[name] = _empty(part, schema)
    return values


def _empty(part: object, schema: dict[str, Any], depth: int = 0) -> object:
    """Returns the emptiest value that a part of a schema allows."""
    if any(_table(choice).get('type') == 'null' for choice in _alternatives(_table(part))):
        return None
    inner = _resolved(part, schema)
    if 'const' in inner:
        return inner['const']
    if isinstance(inner.get('enum'), list) and inner['enum']:
        return inner['enum'][0]
    return _empty_of(inner, schema, depth)


def _empty_of(inner: dict[str, Any], schema: dict[str, Any], depth: int) -> object:
    kind = inner.get('type')
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case 'object':
            parts = _table(inner.get('properties')) if depth < _DEEPEST else {}
            return {name: _empty(inside, schema, depth + 1) for name, inside in parts.items()}
        case 'array':
            return _items(inner, schema, depth)
        case 'string':
            return _EMPTY_FORMATS.get(str(inner.get('format'))) or '-' * _whole(inner.get('minLength'))
        case 'integer' | 'number':
            return _nearest_to_zero(inner)
        case _:
            return False if kind == 'boolean' else None


def _items(inner: dict[str, Any], schema: dict[str, Any], depth: int) -> list[object]:
    first = inner.get('prefixItems')
    parts: list[object] = list(first) if isinstance(first, list) else []
    parts += [inner.get('items')] * (min(_whole(inner.get('minItems')), _MOST_ITEMS) - len(parts))
    return [_empty(part, schema, depth + 1) for part in parts] if depth < _DEEPEST else []


def _nearest_to_zero(inner: dict[str, Any]) -> float:
    lowest, above = inner.get('minimum'), inner.get('exclusiveMinimum')
    highest, below = inner.get('maximum'), inner.get('exclusiveMaximum')
    if _is_number(lowest) and lowest > 0:
        return lowest
    if _is_number(above) and above >= 0:
        return above + 1
    if _is_number(highest) and highest < 0:
        return highest
    return below - 1 if _is_number(below) and below <= 0 else 0


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


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
