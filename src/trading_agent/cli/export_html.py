"""Sessions as one HTML file: nothing is fetched, it reads on a phone, by day and by night, and prints."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from trading_agent.cli.exported_session import ExportedSession, fit, took
from trading_agent.cli.render import IST, india_time, parse_instant, plural, triggers_words, usage_words
from trading_agent.memory.exchange import Exchange

CONTENTS_FROM = 12
"""A session with so many exchanges gets a table of contents by the hour."""

STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #59636e; --told: #f3f5f8; --line: #d5dae0;
  --mark: #0b62c4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #14171b; --soft: #98a2ad; --told: #1e232a;
  --line: #363d46; --mark: #7db4f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 48rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.25rem; padding-top: 0.75rem; border-top: 2px solid var(--line); }
h3 { font-size: 0.9rem; font-weight: 400; color: var(--soft); margin: 0 0 0.4rem; overflow-wrap: anywhere; }
h3 time, h3 strong { font-weight: 600; color: var(--ink); }
a { color: var(--mark); text-decoration: none; }
h3 a { color: inherit; }
.facts { color: var(--soft); margin: 0 0 1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; list-style: none; margin: 0 0 1rem; padding: 0; }
nav li { padding: 0.25rem 0; }
article { margin: 1.5rem 0; scroll-margin-top: 1rem; }
article:target { outline: 2px solid var(--mark); outline-offset: 0.5rem; }
.told, .said { white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
.told { background: var(--told); border-left: 3px solid var(--line); padding: 0.5rem 0.75rem; margin-bottom: 0.6rem; }
.said { padding: 0 0.75rem; }
@media print {
  :root { color-scheme: light; --ink: #000; --paper: #fff; --soft: #444; --told: #f3f3f3; --line: #999; --mark: #000; }
  @page { margin: 18mm 15mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  nav { display: none; }
  section + section { break-before: page; }
  h2, h3, .facts { break-after: avoid; }
  article { break-inside: avoid; }
  .told { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  p, div { orphans: 3; widows: 3; }
}
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html(desk: str, session_ids: Sequence[str], sessions: Iterable[ExportedSession]) -> Iterator[str]:
    """Yields the document, part by part.

    Args:
        desk: The desk's name.
        session_ids: Which sessions there will be, for the title and the table of contents.
        sessions: The sessions, in the same order.
    """
    title = f'Desk {desk}, ' + (
        f'session {session_ids[0]}' if len(session_ids) == 1 else f'{plural(len(session_ids), "session")}'
    )
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<title>{_shown(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n'
        f'<header>\n<h1>Desk {_shown(desk)}</h1>\n</header>\n'
    )
    if len(session_ids) > 1:
        yield _contents('Sessions', [(session_id, session_id) for session_id in session_ids])
    yield '<main>\n'
    for session in sessions:
        yield from _session(session)
    yield '</main>\n</body>\n</html>\n'


def _session(session: ExportedSession) -> Iterator[str]:
    yield f'<section id="{session.session_id}">\n<h2>Session {session.session_id}</h2>\n'
    yield f'<p class="facts">{_shown(session.facts)}</p>\n'
    if len(session.exchanges) >= CONTENTS_FROM:
        yield _contents('Hours', list(_hours(session)))
    for number, exchange in enumerate(session.exchanges, 1):
        yield _exchange(exchange, session, number)
    if session.summary:
        owed = ' <span>(degraded: a full one is owed)</span>' if session.degraded else ''
        yield (
            f'<article id="{session.session_id}-summary">\n<h3><strong>Summary</strong>{owed}</h3>\n'
            f'{_block("said", session.summary)}</article>\n'
        )
    yield '</section>\n'


def _contents(about: str, links: list[tuple[str, str]]) -> str:
    items = ''.join(f'<li><a href="#{target}">{_shown(text)}</a></li>\n' for target, text in links)
    return f'<nav aria-label="{about}">\n<ul>\n{items}</ul>\n</nav>\n'


def _hours(session: ExportedSession) -> Iterator[tuple[str, str]]:
    """Yields each hour in which something was answered, with the place of its first exchange, and the summary."""
    hour, first, count = '', 0, 0
    for number, exchange in enumerate(session.exchanges, 1):
        instant = parse_instant(exchange.finished_at)
        begun = f'{instant.astimezone(IST):%H:00}' if instant else hour
        if begun != hour:
            if count:
                yield f'{session.session_id}-{first}', f'{hour} ({count:,})'
            hour, first, count = begun, number, 0
        count += 1
    if hour:
        yield f'{session.session_id}-{first}', f'{hour} ({count:,})'
    if session.summary:
        yield f'{session.session_id}-summary', 'Summary'


def _exchange(exchange: Exchange, session: ExportedSession, number: int) -> str:
    place = f'{session.session_id}-{number}'
    clock = _shown(f'{india_time(exchange.finished_at, session.noon)} IST')
    instant = parse_instant(exchange.finished_at)
    told = [f'<time datetime="{instant.isoformat(timespec="milliseconds")}">{clock}</time>' if instant else clock]
    facts = [exchange.backend_name, took(exchange), usage_words(exchange.usage)]
    facts += [triggers_words(exchange.answers)]
    told += [f'<span>{_shown(fact)}</span>' for fact in facts if fact]
    told[0] = f'<a href="#{place}">{told[0]}</a>'
    return (
        f'<article id="{place}">\n<h3>{", ".join(told)}</h3>\n'
        f'{_block("told", exchange.trigger_text)}{_block("said", exchange.answer)}</article>\n'
    )


def _block(kind: str, text: str) -> str:
    return f'<div class="{kind}" dir="auto">{_shown(text)}</div>\n'


def _shown(text: str) -> str:
    return escape(fit(text))
