"""Checks a summary by code: each number, date, time and symbol in it stands in what it was made from, or is marked.

A number stands there when its value does, however it is written: `1,234.50` is `1234.5`, and `Rs 5 lakh` is
`₹500,000`. Behind `about` and the like it may be rounded as far as its last digit shows. Counts of things (up to the
number of lines, where no price or quantity is meant), numbers of a list, the times and the dates of the session
need no proof.
"""

import html
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal

from trading_agent.clock import INDIA
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.facts import MARK, Fact, Figure, facts_in
from trading_agent.memory.rollover import clipped

LEGEND = '[?] stands behind what is not in the exchanges or notes of the session.'
"""The last line of a summary that has marks."""

_MARKED = re.compile(r'(?<=\S)[ \t]?\[\?\]')
_WORD = re.compile(r'[A-Za-z0-9]+(?:[&.\'\u2019/_-]+[A-Za-z0-9]+)*')
_PART = re.compile(r'[A-Za-z0-9]+')
_DIGITS = re.compile(r'\d+')
_LIST_NUMBER = re.compile(r'(?:\A|\n)[ \t]*(?:[-*>#]+[ \t]+)?(?:\*\*)?\(?\Z')
_PERIOD = re.compile(r'(?:(?:Q[1-4]|[1-4]Q|H[12]|[12]H|[369]M|12M|FY|CY)[-/]?)+(?:\d{2}|\d{4})?(?:[-/]\d{2,4})?')
_LEFT_OUT = re.compile(r'\[[^\[\]\n]* left out\]|\[… cut here\]')
_NO_COUNT_BEFORE = re.compile(
    r'(?:[₹$€£@]|\b(?:Rs|INR|USD|EUR|GBP|bought|buy(?:ing)?|sold|sell(?:ing)?|long|short(?:ed)?|at|above|below|target'
    r'|stop|stop[- ]?loss|sl|limit|price|priced|level|near|strike|qty|quantity|position|worth)\.?)[\s:=*]{0,3}\Z',
    re.IGNORECASE,
)
_NO_COUNT_BEHIND = re.compile(r'\s?(?:shares?|lots?|units|qty|MW|equity|points?|rupees|₹|/-)(?![a-z])', re.IGNORECASE)
_ABOUT = re.compile(
    r'(?:~|≈|\b(?:about|around|approx(?:\.|imately)?|roughly|nearly|almost|over|more than|less than|under|close to'
    r'|just (?:over|under)|up to|at least))[\s(]{0,2}(?:(?:₹|\$|€|Rs\.?|INR|USD)\s?)?\Z',
    re.IGNORECASE,
)
_CONTEXT = 30
_FEWEST = 12
_DAYS_AROUND = 4
_ROUNDED = timedelta(minutes=5)
_MARKET_TIMES = frozenset({time(9, 0), time(9, 15), time(15, 30), time(15, 40)})

_COMMON = frozenset(
    re.findall(
        r'\S+',
        """
        agm ai alert alerts all always am amc an and announcement announcements apr as asap at aug avoid bid bo board
        bps bse but buy buyback by cash ceo cfo cirp closed closing coc companies company coo crisil cto data day days
        dec decided decision decisions demat dividend dividends do done down dr drhp ebit ebitda egm entry epc eps esg
        eso esop esops esos esps etf etfs eu events exit exited exposure f&o fda fed fii fiis filing filings flat fno
        for fpi fpis fri from fund fut gdp gift gsm gst gw gwh high hold holding holdings hr icra id if in india info
        inr ipo ipos isin issue ist it jan jul jun key km kw kwh kyc last lessons limit llp loa lodr loi long low ltd
        ltp m&a mar margin market max may mcx md min mom mon mou mr mrs ms mt mtpa must mw mwh na nav nbfc nbfcs ncd
        ncds nclt net never new news next nfo nifty nil no none not note notes nov now npa nri ns nse of ofs oi ok old
        on one open opening or order orders otc our out p&l pan pat pbt pe pending per pli pm po position positions pr
        price prices profit psu psus put pvt q&a qib qip qoq question questions r&d rbi reg reit reits result results
        revenue review rfp risk risks roce roe rs rta rule rules sast sebi sell sensex sep sept session sez short
        shorts sip sl sma sme sold spv stop stop-loss subject subjects summary sun symbol symbols t+1 tat tbd the this
        thu to today todo tomorrow total trade trades trading tue uk up update updates us usa usd usfda vix vp vs vwap
        wait warning watch watchlist wed week with xbrl yes yesterday yoy ytd
        """,
    )
)
"""Words that are written in capitals and name no security, in lower case."""


@dataclass(frozen=True)
class CheckedSummary:
    """A summary as it is filed.

    Attributes:
        text: The summary, with marks where something could not be proved.
        unproved: How many marks were set.
    """

    text: str
    unproved: int


def checked(
    summary: str, trading_date: date, exchanges: Sequence[Exchange], others: Iterable[str], budget: int
) -> CheckedSummary:
    """Returns a summary in which everything is marked that does not stand in what it was made from.

    What is marked already, in a summary that is carried for example, proves nothing; a second check changes nothing.
    It takes time in proportion to the session: call it in a thread.

    Args:
        summary: The summary.
        trading_date: The session's India date.
        exchanges: The session's exchanges.
        others: What else the summary was made from: notes, Memory.md.
        budget: The longest result, in characters.
    """
    text = _MARKED.sub('', summary.strip().removesuffix(LEGEND).rstrip())
    sources = _Sources(trading_date, exchanges, others)
    allowed = [match.span() for match in _LEFT_OUT.finditer(text)]
    parts: list[str] = []
    done = 0
    for fact in facts_in(text):
        if not sources.proves(fact, text) and not any(start <= fact.start < end for start, end in allowed):
            parts += [text[done : fact.end], MARK]
            done = fact.end
    if not parts:
        return CheckedSummary(clipped(text, budget), 0)
    marked, ending = ''.join([*parts, text[done:]]), f'\n\n{LEGEND}'
    return CheckedSummary(clipped(marked, budget - len(ending)) + ending, len(parts) // 2)


class _Sources:
    """What a summary was made from: what stands in it."""

    def __init__(self, trading_date: date, exchanges: Sequence[Exchange], others: Iterable[str]) -> None:
        self._date = trading_date
        self._words: set[str] = set()
        self._literals: set[str] = set()
        self._days: set[tuple[int | None, int, int]] = set()
        self._times: set[time] = set(_MARKET_TIMES)
        self._written: set[Decimal] = set()
        self._values: dict[str, set[Decimal]] = {'bare': set(), 'scaled': set(), 'percent': set()}
        self._sorted: dict[bool, list[Decimal]] = {}
        self._texts = [*(part for each in exchanges for part in (each.trigger_text, each.answer)), *others]
        for text in self._texts:
            self._read(text)
        self._most = max(_FEWEST, sum(text.count('\n') + 1 for text in self._texts))
        self._span = _span(moment for each in exchanges for moment in (each.started_at, each.finished_at))

    def _read(self, text: str) -> None:
        if MARK.strip() in text:
            text = _without_marked(text)
        if '&' in text:
            text = html.unescape(text)
        for word in _WORD.findall(text):
            self._words.add(word.casefold())
        self._words.update(part.casefold() for part in _PART.findall(text))
        for fact in facts_in(text):
            if fact.figure is not None:
                self._add(fact.figure)
            elif fact.symbol:
                self._words.add(fact.symbol.casefold())
                self._written.update(Decimal(run) for run in _DIGITS.findall(fact.symbol[:_CONTEXT]))
            elif fact.at is not None:
                self._times.add(fact.at)
            elif fact.days:
                self._days.update(fact.days)
                self._written.update(Decimal(part) for day in fact.days for part in day if part is not None)
            self._literals.add(fact.literal)

    def _add(self, figure: Figure) -> None:
        self._written.add(figure.value)
        self._values[figure.kind].add(figure.scaled)

    # -- proof -------------------------------------------------------------------------------------------------

    def proves(self, fact: Fact, text: str) -> bool:
        """Returns whether a fact of a summary stands here, or needs no proof."""
        if fact.figure is not None:
            if _PERIOD.fullmatch(fact.text):
                return True
            before, behind = text[max(0, fact.start - _CONTEXT) : fact.start], text[fact.end : fact.end + _CONTEXT]
            return self._proves_figure(fact.figure, before, behind)
        if fact.symbol:
            return self._proves_symbol(fact.symbol)
        if fact.at is not None:
            begin, end = self._span
            return fact.at in self._times or begin <= fact.at <= end
        if fact.days:
            return any(self._proves_day(day) for day in fact.days)
        return fact.literal in self._literals

    def _proves_figure(self, figure: Figure, before: str, behind: str) -> bool:
        bare, own = self._values['bare'], self._values[figure.kind]
        if figure.kind == 'bare':
            if figure.value in self._written or figure.value in self._values['scaled']:
                return True
            if self._is_count(figure, before, behind):
                return True
        elif figure.scaled in own or figure.value in bare or (figure.kind == 'scaled' and figure.scaled in bare):
            return True
        return bool(_ABOUT.search(before)) and self._is_near(figure)

    def _is_count(self, figure: Figure, before: str, behind: str) -> bool:
        if figure.value != figure.value.to_integral_value():
            return False
        if behind[:1] in ('.', ')') and figure.value < 100 and _LIST_NUMBER.search(before):
            return True
        if abs(figure.value - self._date.year) <= 1:
            return True
        return figure.value <= self._most and not _NO_COUNT_BEFORE.search(before) and not _NO_COUNT_BEHIND.match(behind)

    def _is_near(self, figure: Figure) -> bool:
        of_percent = figure.kind == 'percent'
        if of_percent not in self._sorted:
            kinds = ('percent', 'bare') if of_percent else ('bare', 'scaled')
            self._sorted[of_percent] = sorted(set[Decimal]().union(*(self._values[kind] for kind in kinds)))
        values = self._sorted[of_percent]
        tolerance = min(figure.step, figure.scaled / 10)
        at = bisect_left(values, figure.scaled - tolerance)
        return at < len(values) and values[at] <= figure.scaled + tolerance

    def _proves_symbol(self, symbol: str) -> bool:
        word = symbol.casefold()
        if word in self._words or word in _COMMON or _PERIOD.fullmatch(symbol):
            return True
        parts = _PART.findall(word)
        long = [part for part in parts if len(part) > 1]
        if len(parts) > 1 and long and all(part in self._words or part in _COMMON for part in long):
            return True
        return 4 <= len(symbol) <= 8 and symbol.isalpha() and self._has_initials(symbol)

    def _has_initials(self, symbol: str) -> bool:
        words = re.compile(r'(?<!\w)' + r'\W{1,2}'.join(rf'{letter}[a-z]+' for letter in symbol))
        return any(words.search(text) for text in self._texts)

    def _proves_day(self, day: tuple[int | None, int, int]) -> bool:
        year, month, of_month = day
        if day in self._days or (None, month, of_month) in self._days:
            return True
        if year is None and any(known[1:] == (month, of_month) for known in self._days):
            return True
        for distance in range(-_DAYS_AROUND, _DAYS_AROUND + 1):
            near = self._date + timedelta(days=distance)
            if (near.month, near.day) == (month, of_month) and year in (None, near.year):
                return True
        return False


def _without_marked(text: str) -> str:
    """Takes out of a text what is marked in it."""
    parts: list[str] = []
    done = 0
    for fact in facts_in(text):
        mark = _MARKED.match(text, fact.end)
        if mark is not None:
            parts.append(text[done : fact.start])
            done = mark.end()
    return ''.join([*parts, text[done:]])


def _span(moments: Iterable[str | None]) -> tuple[time, time]:
    """Returns when a session began and ended in India, rounded; nothing is in between where that is not known."""
    found: list[datetime] = []
    for moment in moments:
        try:
            instant = datetime.fromisoformat(moment or '')
        except ValueError:
            continue
        if instant.tzinfo is not None:
            found.append(instant)
    if not found:
        return time.max, time.min
    try:
        first, last = (min(found) - _ROUNDED).astimezone(INDIA), (max(found) + _ROUNDED).astimezone(INDIA)
    except OverflowError:
        return time.max, time.min
    return (first.time(), last.time()) if first.date() == last.date() else (time.min, time.max)
