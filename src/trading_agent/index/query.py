"""What people type into a search, as SQLite's full text understands it. Nothing that is typed is an error.

See https://www.sqlite.org/fts5.html#full_text_query_syntax.
"""

import re
import unicodedata

from trading_agent.trigger import storable

MOST_TERMS = 32
"""How many different words and phrases of a query count; further ones are left out."""

_LONGEST_QUERY = 1 << 14
_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_NUMBER = re.compile(r'\W*?(\d[\d,]*?)(?:\.(\d+))?\W*', re.ASCII)


def expressions(typed: str) -> list[str]:
    """Returns what to look for, the strictest first; none where nothing that is typed could be found.

    Each word must occur, else any of them. Words within double quotes must follow each other, as must the parts of a
    word such as `M&M`. A `*` at the end stands for any ending. A number is found however its digits are grouped.
    """
    terms: list[str] = []
    for match in _TERM.finditer(storable(typed[:_LONGEST_QUERY]).replace('\0', ' ')):
        if len(terms) == MOST_TERMS:
            break
        phrase, star, word = match.groups()
        term = _quoted(phrase, prefix=bool(star)) if word is None else _word(word)
        if term is not None and term not in terms:
            terms.append(term)
    return [joined.join(terms) for joined in ((' AND ', ' OR ') if len(terms) > 1 else (' ',)) if terms]


def _word(word: str) -> str | None:
    number = _NUMBER.fullmatch(word) if len(word) < 40 else None
    if number is not None and not word.endswith('*'):
        return '(' + ' OR '.join(f'"{spelling}"' for spelling in _spellings(number[1], number[2] or '')) + ')'
    return _quoted(word.rstrip('*'), prefix=word.endswith('*'))


def _quoted(text: str, *, prefix: bool) -> str | None:
    if not any(_in_word(char) for char in text):
        return None
    return '"' + text.replace('"', '""') + ('" *' if prefix else '"')


def _in_word(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] in 'LN' or category in ('Co', 'Mn', 'Mc')


def _spellings(whole: str, decimals: str) -> list[str]:
    """Returns how a number may stand in a text: 1234567.5, 1,234,567.50 and 12,34,567.50 are one."""
    digits = whole.replace(',', '')
    head, tail = digits[:-3], digits[-3:]
    endings = dict.fromkeys((decimals, decimals.rstrip('0'), decimals.ljust(2, '0')) if decimals else ('',))
    wholes = dict.fromkeys((digits, ' '.join((*_groups(head, 3), tail)), ' '.join((*_groups(head, 2), tail))))
    return [f'{written} {ending}'.strip() for written in wholes for ending in endings]


def _groups(digits: str, size: int) -> list[str]:
    first = len(digits) % size
    groups = [digits[:first], *(digits[start : start + size] for start in range(first, len(digits), size))]
    return [group for group in groups if group]
