"""How what was found looks: to people a block each, with the match marked, to programs a record."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from trading_agent.cli.render import india_time, on_terminal, paint, plural, printable, terminal_width
from trading_agent.cli.status_view import cells_of
from trading_agent.index.results import Hit

LINES_SHOWN = 4
_INDENT = '    '
_PLAIN_WIDTH = 100

Marks = Sequence[tuple[int, int]]


def as_json(hit: Hit) -> dict[str, Any]:
    """Returns a message that was found for programs."""
    told: dict[str, Any] = {
        'desk': hit.desk,
        'session_id': hit.session_id,
        'trading_date': hit.trading_date.isoformat(),
        'at': hit.at,
        'who': hit.who,
        'text': hit.text,
        'score': hit.score,
    }
    return told | ({'trigger_id': hit.trigger_id} if hit.trigger_id else {})


def print_hits(hits: Sequence[Hit], *, more: bool) -> None:
    """Writes what was found, the best first, and how many there are.

    Args:
        hits: The messages.
        more: Whether there are more of them.
    """
    width = terminal_width() if on_terminal() else _PLAIN_WIDTH
    for hit in hits:
        click.echo(_heading(hit))
        for line in excerpt_lines(hit.excerpt, hit.marks, width - len(_INDENT)):
            click.echo(_INDENT + line)
        click.echo()
    count = plural(len(hits), 'message')
    click.echo(f'the best {count}; there are more: --limit shows them' if more else f'{count} found')


def _heading(hit: Hit) -> str:
    when = f'{india_time(hit.at)} IST' if hit.at else hit.trading_date.isoformat()
    trigger = f', trigger {hit.trigger_id}' if hit.trigger_id else ''
    return paint(printable(f'{when}  {hit.desk}  {hit.session_id}  {who(hit.who)}'), 'cyan') + paint(
        printable(trigger), dim=True
    )


def who(role: str) -> str:
    """Returns who said something, in a word or two."""
    kind, _, tool = role.partition(':')
    if tool:
        return f'tool {tool}'
    return {'user': 'told', 'assistant': 'answered'}.get(kind, kind)


def excerpt_lines(text: str, marks: Marks, width: int) -> Iterator[str]:
    """Yields an excerpt in lines of a width, the matches in it marked; a long one ends with an ellipsis.

    Args:
        text: The excerpt, on one line.
        marks: Where in it the matches are: pairs of start and end, in characters.
        width: How many columns there are.
    """
    shown = printable(text)
    if len(shown) != len(text):  # a line ending became one character less
        marks = []
    places = list(_lines(shown, max(10, width)))
    for number, (begin, end) in enumerate(places[:LINES_SHOWN]):
        cut = number == LINES_SHOWN - 1 and len(places) > LINES_SHOWN
        yield _marked(shown, begin, end, marks) + (' …' if cut else '')


def _lines(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yields where each line begins and ends when words are kept whole as far as they fit."""
    begin = 0
    while begin < len(text):
        while begin < len(text) and text[begin].isspace():
            begin += 1
        end, taken = begin, 0
        while end < len(text) and taken + cells_of(text[end]) <= width - 2:
            taken += cells_of(text[end])
            end += 1
        if end < len(text) and not text[end].isspace():
            space = max((at for at in range(begin, end) if text[at].isspace()), default=begin)
            end = space if space > begin else end
        if end > begin:
            yield begin, end
        begin = max(end, begin + 1)


def _marked(text: str, begin: int, end: int, marks: Marks) -> str:
    told, at = '', begin
    for first, last in marks:
        first, last = max(first, at), min(last, end)  # noqa: PLW2901 - the part of it in this line
        if first < last:
            told += text[at:first] + _mark(text[first:last])
            at = last
    return (told + text[at:end]).rstrip()


def _mark(text: str) -> str:
    bold = paint(text, bold=True)
    return bold if bold != text else f'**{text}**'
