"""The figures, dates, times, symbols and links that a text states, and where they stand in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal

MARK = ' [?]'
"""Stands behind what is not in what a text was made from."""

_MONTHS = (
    'January',
    'February',
    'March',
    'April',
    'May',
    'June',
    'July',
    'August',
    'September',
    'October',
    'November',
    'December',
)
_NUMBER_OF_MONTH = {name[:3].lower(): number for number, name in enumerate(_MONTHS, 1)}
_MONTH = re.compile('|'.join(_NUMBER_OF_MONTH), re.IGNORECASE)
_SCALES = {
    'thousand': 3,
    'k': 3,
    'lakh': 5,
    'lac': 5,
    'million': 6,
    'mn': 6,
    'm': 6,
    'crore': 7,
    'cr': 7,
    'billion': 9,
    'bn': 9,
    'b': 9,
    'lakh crore': 12,
    'trillion': 12,
}
"""Units of amounts, in the singular, as powers of ten."""

_PERCENT = {'%': 0, 'percent': 0, 'per cent': 0, 'pct': 0, 'bps': -2, 'bp': -2, 'basis point': -2}
_LONGEST_FIGURE = 40


def _month_pattern() -> str:
    both = [part for name in _MONTHS for part in (name, name.upper(), name[:3], name[:3].upper())]
    return '(?:' + '|'.join(['Sept', *sorted(both, key=len, reverse=True)]) + r')(?![A-Za-z])\.?'


_DAY = r'\d{1,2}(?:st|nd|rd|th|ST|ND|RD|TH)?'
_YEAR = r'(?:\d{4}|\d{2})(?!\d)'
_FACT = re.compile(
    rf"""(?=[0-9A-Zh])(?:
    (?P<url>https?://[^\s<>()\[\]"'`]+)
  | (?P<date>(?<![\dA-Za-z])(?:
        \d{{4}}-\d{{2}}-\d{{2}}(?!\d)
      | \d{{1,2}}(?P<sep>[-/.])\d{{1,2}}(?P=sep){_YEAR}
      | {_DAY}[ -]?(?:of[ ])?{_month_pattern()}(?:[ ,'\u2019-]{{1,2}}\d{{4}}(?!\d)|[-'\u2019]\d{{2}}(?!\d))?
      | {_month_pattern()}[ ]?{_DAY}(?![\dA-Za-z])(?!,\d{{3}}(?!\d))(?!\.\d)(?:,?[ ]?\d{{4}}(?!\d))?
    ))
  | (?P<time>(?<![\d.,:A-Za-z])(?:
        \d{{1,2}}[:.]\d{{2}}(?::\d{{2}})?[ ]?(?:[AaPp]\.?[Mm](?![A-Za-z])\.?|[Hh](?:ou)?rs)
      | \d{{1,2}}:\d{{2}}(?::\d{{2}})?(?![\d:])
      | \d{{1,2}}[ ]?(?:am|pm|AM|PM|a\.m\.|p\.m\.)(?![A-Za-z])
    ))
  | (?P<symbol>(?<![A-Za-z0-9&])
        (?!\d+(?:MW|GW|KW|MWH|GWH|KWH|KM|MT|MTPA|CR|K|M|B|X|BPS)(?![A-Za-z0-9]))(?=[0-9&]*[A-Z][A-Z0-9&]|[0-9]+[A-Z])
        [A-Z0-9]+(?:[&./-][A-Z0-9]+){{0,8}}(?![A-Za-z0-9])
    )
  | (?P<number>(?:(?<=Rs)|(?<=RS)|(?<=INR)|(?<=USD)|(?<=EUR)|(?<![0-9A-Za-z])(?<!&\#))
        (?P<value>\d{{1,3}}(?:,\d{{2,3}}){{0,8}},\d{{3}}(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)
        (?:[ -]?(?P<unit>%|(?i:
            per[ ]?cent|pct|bps?|basis[ ]points?
          | lakh[ ]crores?|lakhs?|lacs?|crores?|cr|thousand|million|mn|billion|bn|trillion
        )(?![A-Za-z]))|(?P<letter>[kKMB])(?![A-Za-z0-9]))?
    ))
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number.

    Attributes:
        value: The number as it is written, without its sign and unit.
        scaled: The number that is meant: of `5 lakh` 500,000; of `50 bps` 0.5.
        kind: `bare`, `scaled` (an amount with a unit such as lakh or million) or `percent`.
        step: What the last digit that is not a trailing zero counts, scaled.
    """

    value: Decimal
    scaled: Decimal
    kind: str
    step: Decimal


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a text: exactly one of the attributes behind `end` is there.

    Attributes:
        text: The fact as it is written.
        start: Where it begins.
        end: Where it ends.
        figure: The number.
        days: What the date may be, as year (None where it is not written), month and day.
        at: The time of day.
        symbol: The word in capitals.
        literal: A link, or what looks like a date or a time and is none.
    """

    text: str
    start: int
    end: int
    figure: Figure | None = None
    days: tuple[tuple[int | None, int, int], ...] = ()
    at: time | None = None
    symbol: str = ''
    literal: str = ''


def facts_in(text: str) -> Iterator[Fact]:
    """Yields the facts of a text, in their order. Takes time in proportion to the text."""
    for match in _FACT.finditer(text):
        found, start, end = match[0], match.start(), match.end()
        if match['number'] is not None:
            yield Fact(found, start, end, figure=_figure(match['value'], match['unit'] or match['letter'] or ''))
        elif match['symbol'] is not None:
            yield Fact(found, start, end, symbol=found)
        elif match['date'] is not None and (days := tuple(_days(found))):
            yield Fact(found, start, end, days=days)
        elif match['time'] is not None and (at := _time(found)) is not None:
            yield Fact(found, start, end, at=at)
        else:
            yield Fact(found, start, end, literal=found.rstrip('.,;:!?'))


def _figure(value: str, unit: str) -> Figure:
    digits = value.replace(',', '')[:_LONGEST_FIGURE]
    number = Decimal(digits)
    name = ' '.join(unit.lower().split())
    name = name if name in _SCALES or name in _PERCENT else name.removesuffix('s')
    power = _SCALES.get(name, _PERCENT.get(name, 0))
    whole, _, fraction = digits.partition('.')
    zeros = len(whole) - len(whole.rstrip('0')) if not fraction else -len(fraction)
    kind = 'bare' if not unit else 'percent' if name in _PERCENT else 'scaled'
    return Figure(number.normalize(), number.scaleb(power).normalize(), kind, Decimal(1).scaleb(zeros + power))


def _days(text: str) -> Iterator[tuple[int | None, int, int]]:
    numbers = [int(part) for part in re.findall(r'\d+', text)]
    month = _MONTH.search(text)
    if month is not None:
        year = _year(numbers[1]) if len(numbers) > 1 else None
        readings = [(year, _NUMBER_OF_MONTH[month[0].lower()], numbers[0])]
    elif numbers[0] > 31:
        readings = [(numbers[0], numbers[1], numbers[2])]
    else:
        year = _year(numbers[2])
        readings = [(year, numbers[1], numbers[0]), (year, numbers[0], numbers[1])]
    for year, of_year, day in readings:
        try:
            date(year or 2000, of_year, day)
        except ValueError:
            continue
        yield year, of_year, day


def _year(number: int) -> int:
    return number if number > 99 else 2000 + number


def _time(text: str) -> time | None:
    parts = [int(part) for part in re.findall(r'\d+', text)]
    hour, minute = parts[0], parts[1] if len(parts) > 1 else 0
    half = re.search(r'[AaPp](?=\.?[Mm])', text)
    if half is not None and 1 <= hour <= 12:
        hour = hour % 12 + (12 if half[0] in 'pP' else 0)
    try:
        return time(hour, minute)
    except ValueError:
        return None
