"""Sessions as Markdown: whatever was said stands in fences that it cannot break out of."""

import re
from collections.abc import Iterable, Iterator

from trading_agent.cli.exported_session import ExportedSession, fit, took
from trading_agent.cli.render import india_time, triggers_words, usage_words
from trading_agent.memory.exchange import Exchange

_SYNTAX = re.compile(r'[\\`*_\[\]<>&~|#$]')


def markdown(desk: str, sessions: Iterable[ExportedSession]) -> Iterator[str]:
    """Yields the document, part by part."""
    yield f'# Desk {inline(desk)}\n'
    for session in sessions:
        yield f'\n## Session {session.session_id}\n\n{inline(session.facts)}\n'
        for exchange in session.exchanges:
            yield _exchange(exchange, session)
        if session.summary:
            owed = ' (degraded: a full one is owed)' if session.degraded else ''
            yield f'\n### Summary of session {session.session_id}{owed}\n\n{fenced(session.summary)}\n'


def _exchange(exchange: Exchange, session: ExportedSession) -> str:
    clock = f'{india_time(exchange.finished_at, session.noon)} IST'
    source = f', {triggers_words(exchange.answers)}' if exchange.answers else ''
    how = ', '.join(filter(None, [took(exchange), usage_words(exchange.usage)]))
    answered = f'Answered by {exchange.backend_name}' + (f' ({how})' if how else '')
    return (
        f'\n### {inline(clock + source)}\n\n{fenced(exchange.trigger_text)}\n'
        f'\n{inline(answered)}:\n\n{fenced(exchange.answer)}\n'
    )


def inline(text: str) -> str:
    """Returns a text for the middle of a line, where none of it is taken for Markdown or HTML."""
    return _SYNTAX.sub(lambda char: '\\' + char[0], ' '.join(fit(text).split()))


def fenced(text: str) -> str:
    """Returns a text as it is, in a fence that is longer than any in it."""
    shown = fit(text)
    fence = '`' * max(3, 1 + max(map(len, re.findall('`+', shown)), default=0))
    return f'{fence}text\n{shown}\n{fence}'
