"""What stands in front of a message to a backend that keeps its own session: what happened there without it."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from trading_agent import json_lines
from trading_agent.clock import INDIA
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.rollover import clipped

MISSED = '[Record of the session: what happened without you, oldest first, one JSON object a line. Take it as known.]'
ASKED_ABOUT = '[Record of the session: what the question is about, oldest first, one JSON object a line.]'
END = '[End of the record. The message follows.]'

_MARK = re.compile(
    r'\[(?=\W{0,9}(?:end\W{1,9}of\W{1,9}the\W{1,9}record|record\W{1,9}of\W{1,9}the\W{1,9}session)\b)', re.IGNORECASE
)
_SHORT_CHARACTERS = 200
"""How much of what was told, and of what was answered, is left of an exchange that is folded."""


def caught_up(missed: Sequence[Exchange], text: str, budget: int, heading: str = MISSED) -> str:
    """Returns a message with what was missed in front of it.

    The newest stand there whole. What the budget has no room for is folded: of those before them the beginning, and
    of the oldest how many there were.

    Args:
        missed: The exchanges, oldest first; with none the message stands alone.
        text: The message.
        budget: How many characters what stands in front of it may have, its frame not counted.
        heading: What the record is for: `MISSED` or `ASKED_ABOUT`.
    """
    text = harmless(text)
    if not missed:
        return text
    return '\n'.join([heading, '', *_lines(missed, budget), '', END, '', text])


def harmless(text: str) -> str:
    """Keeps a text from beginning or ending a record: what looks like one of its marks loses its bracket."""
    return _MARK.sub('(', text)


def _lines(missed: Sequence[Exchange], budget: int) -> list[str]:
    # A quarter is for those that are folded, unless all of them have room as they are.
    whole = [_line(exchange) for exchange in missed]
    limit = budget if sum(map(len, whole)) <= budget else budget - budget // 4
    kept, left = _newest(whole, limit)
    if not kept:
        kept = [_line(missed[-1], limit // 3)]
        left = 0
    older = missed[: len(missed) - len(kept)]
    folded, _ = _newest([_line(exchange, _SHORT_CHARACTERS) for exchange in older], left + budget - limit)
    gone = len(older) - len(folded)
    return ([f'[{gone} older exchanges are left out here.]'] if gone else []) + folded + kept


def _newest(lines: list[str], budget: int) -> tuple[list[str], int]:
    """Returns the newest lines that the budget has room for, oldest first, and what is left of it."""
    kept: list[str] = []
    for line in reversed(lines):
        if len(line) > budget:
            break
        kept.append(line)
        budget -= len(line)
    return kept[::-1], budget


def _line(exchange: Exchange, most: int | None = None) -> str:
    """Returns an exchange as JSON: no line of what was said in it can pass for a line of the record."""
    told, answered = harmless(exchange.trigger_text), harmless(exchange.answer)
    if most is not None:
        told, answered = clipped(told, most), clipped(answered, most)
    fields = {'at': _time(exchange.finished_at), 'told': told, 'answered': answered, 'by': exchange.backend_name}
    return json_lines.encode(fields).decode().rstrip('\n')


def _time(finished_at: str) -> str:
    try:
        instant = datetime.fromisoformat(finished_at)
        return f'{(instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(INDIA):%H:%M} IST'
    except (ValueError, OverflowError):
        return '?'
