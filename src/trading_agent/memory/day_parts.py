"""Cuts a session that is too long for a model into parts that are not."""

import math
from collections.abc import Sequence
from dataclasses import replace

from trading_agent.memory.exchange import Exchange
from trading_agent.memory.rollover import SummaryPart, clipped

_FRAME = 50
"""What an exchange takes beside its texts, in characters."""


def size_of(exchanges: Sequence[Exchange]) -> int:
    """Returns how much a model is shown of exchanges, in characters."""
    return sum(map(_size, exchanges))


def _size(exchange: Exchange) -> int:
    return len(exchange.trigger_text) + len(exchange.answer) + _FRAME


def part_count(exchanges: Sequence[Exchange], budget: int) -> int:
    """Returns how many parts there are to be, at least."""
    return max(1, math.ceil(size_of(exchanges) / budget))


def next_part(exchanges: Sequence[Exchange], done: int, budget: int) -> list[Exchange]:
    """Returns the exchanges of the part that follows the first `done` ones: parts of about the same size.

    Args:
        exchanges: The session's exchanges, oldest first.
        done: How many of them are in the parts before.
        budget: The most of one part, in characters. The texts of an exchange that is larger alone are cut.
    """
    left = exchanges[done:]
    aim = size_of(left) / part_count(left, budget)
    part: list[Exchange] = []
    size = 0
    for exchange in left:
        more = _size(exchange)
        # The one that goes beyond the aim still belongs to this part where most of it does.
        if part and (size + more / 2 > aim or size + more > budget):
            break
        part.append(exchange)
        size += more
    return [_cut(part[0], budget)] if size > budget else part


def _cut(exchange: Exchange, budget: int) -> Exchange:
    half = max(0, budget - _FRAME) // 2
    return replace(exchange, trigger_text=clipped(exchange.trigger_text, half), answer=clipped(exchange.answer, half))


def as_exchanges(parts: Sequence[SummaryPart], exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Returns the summaries of a session's parts as what is shown in the place of its exchanges.

    Args:
        parts: The summaries, in order.
        exchanges: All of the session's exchanges.
    """
    shown = []
    first = 1
    for number, part in enumerate(parts, 1):
        last = first + part.exchanges - 1
        told = f'Part {number} of {len(parts)}, exchanges {first} to {last}, summed up:\n\n{part.summary}'
        ended = exchanges[min(last, len(exchanges)) - 1]
        shown.append(replace(ended, trigger_text=told, answer='Noted.', trigger_id=None, usage=None, trigger_ids=()))
        first = last + 1
    return shown
