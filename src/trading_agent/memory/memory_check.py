"""Whether a new Memory.md may take the place of the old one."""

import re
from dataclasses import dataclass

KEEP = re.compile(r'<!--[ \t]*keep[ \t]*-->', re.IGNORECASE)
"""The mark of a line that only a person may change or take away."""

SHORT = 400
"""An old text of no more characters may shrink to anything."""

_SHOWN = 100


@dataclass(frozen=True)
class Refusal:
    """Why a new text is not taken.

    Attributes:
        why: What is wrong with it.
        hint: What a person can do about it.
    """

    why: str
    hint: str


def is_too_long(text: str, budget: int) -> bool:
    """Returns whether a text is longer than its budget, in characters."""
    return len(text.strip()) > budget


def refusal(old: str, new: str, budget: int) -> Refusal | None:
    """Returns why a new text is not taken, or None when it may be.

    It is not when it is over its budget, lacks a line of the old one that is marked `<!-- keep -->`, or has less than
    half of its characters. The same text is always good.

    Args:
        old: The text that it was made from.
        new: The new text.
        budget: The longest text, in characters.
    """
    old, new = old.strip(), new.strip()
    if new == old:
        return None
    if is_too_long(new, budget):
        return Refusal(
            f'it has {len(new):,} characters, and the budget is {budget:,}',
            'shorten Memory.md by hand, or raise memory_budget',
        )
    there = {line.strip() for line in new.split('\n')}
    lost = [line for line in map(str.strip, old.split('\n')) if KEEP.search(line) and line not in there]
    if lost:
        more = f', and {len(lost) - 1} more' if len(lost) > 1 else ''
        return Refusal(
            f'it lacks a line that is marked to be kept: {lost[0][:_SHOWN]!r}{more}',
            'take <!-- keep --> off the line where it may go',
        )
    if len(old) > SHORT and 2 * len(new) < len(old):
        return Refusal(
            f'it has {len(new):,} characters where the old text has {len(old):,}: more than half would be lost',
            'if it is right, put it into Memory.md by hand',
        )
    return None
