"""What is exported of a session, and how its texts are made fit for a document."""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, time

from trading_agent import files
from trading_agent.cli.records import usage_of_session
from trading_agent.cli.render import IST, india_time, parse_instant, plural, printable, span_of, usage_words
from trading_agent.memory.daily_summary import split_sections
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import SessionStore
from trading_agent.trigger import storable

_BIDI = re.compile('[\u202a-\u202e\u2066-\u2069]')
_NO_CHARACTER = re.compile(
    '[\ufdd0-\ufdef'
    + ''.join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17))
    + '\ud800-\udfff]'
)


@dataclass(frozen=True)
class ExportedSession:
    """A session on its way into a document.

    Attributes:
        session_id: The session.
        exchanges: Its exchanges, oldest first.
        usage: Tokens used in it, by kind.
        summary: What was written when it ended; empty where nothing was.
        degraded: Whether a full summary is still owed.
    """

    session_id: str
    exchanges: list[Exchange]
    usage: dict[str, int]
    summary: str = ''
    degraded: bool = False

    @property
    def noon(self) -> datetime:
        """A moment of its trading date: times of this day are told without the date."""
        return datetime.combine(split_session_id(self.session_id)[0], time(12), IST)

    @property
    def facts(self) -> str:
        """How many exchanges, from when to when, and what they took."""
        told = [plural(len(self.exchanges), 'exchange')]
        if self.exchanges:
            first, last = self.exchanges[0].finished_at, self.exchanges[-1].finished_at
            told.append(f'{india_time(first, self.noon)} to {india_time(last, self.noon)} IST')
        return ', '.join([*told, *filter(None, [usage_words(self.usage)])])


def read_session(store: SessionStore, session_id: str) -> ExportedSession:
    """Reads what is exported of a session.

    Raises:
        StorageError: A file is there and cannot be read.
    """
    exchanges = store.exchanges(session_id)
    by_exchanges = Counter[str]()
    for exchange in exchanges:
        by_exchanges.update(exchange.usage or {})
    summary, degraded = _summary_of(store, session_id)
    return ExportedSession(session_id, exchanges, usage_of_session(store, session_id, by_exchanges), summary, degraded)


def _summary_of(store: SessionStore, session_id: str) -> tuple[str, bool]:
    day: date = split_session_id(session_id)[0]
    text = (files.read(store.summary_path(day)) or b'').decode('utf-8-sig', errors='replace')
    whole_day, sections = split_sections(text)
    for section in sections:
        if section.session_id == session_id:
            return section.text, section.degraded
    # A summary without sections is of the day as a whole: the first version wrote them so.
    return ('' if sections else whole_day), False


def fit(text: str) -> str:
    """Returns a text that any document can hold and that reads as it is stored.

    Control characters and what is no character become U+FFFD. A mark that turns the direction of what follows
    becomes its own name, such as `⟦U+202E⟧`: with it a text could look like another one.
    """
    return _NO_CHARACTER.sub('\ufffd', _BIDI.sub(lambda mark: f'⟦U+{ord(mark[0]):04X}⟧', printable(storable(text))))


def took(exchange: Exchange) -> str:
    """Returns how long the turn took, in words; empty where that is not known."""
    began, ended = parse_instant(exchange.started_at), parse_instant(exchange.finished_at)
    return f'in {span_of((ended - began).total_seconds())}' if began and ended else ''
