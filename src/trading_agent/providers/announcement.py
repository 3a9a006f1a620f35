"""What a trigger's text says: an announcement of the exchange, or what a person told the desk.

An announcement is a line such as `Example Mills Limited EXMILLS : Press Release EXMILLS : Example Mills Limited has
informed …`, as NSE's daily file of corporate announcements has them; the second symbol may be missing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from trading_agent.clock import INDIA
from trading_agent.providers.heard import Heard

NO_MODEL = '(offline backend: no model was asked.)'

LINE_END = re.compile('[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+')
# Not after an initial (`B. L. Sons`) or a title, and never before a figure (`Rs. 345`).
SENTENCE_END = re.compile(
    r'(?<=[.!?])(?<![A-Z]\.)(?<!Dr\.)(?<!Mr\.)(?<!Ms\.)(?<!Mrs\.)(?<!M/s\.)(?<!Ltd\.)\s+(?=[A-Z"\'(\[])'
)
BULLET = re.compile(r'^(?:[-*•>#]+\s+)+')

_FRAME_STARTS = ('[First message of session', '[This is the first message of a new session')
_FRAME_END = re.compile(r'^\[End of (?:what came before|the summary)\b[^\n]*(?:\n|\Z)', re.MULTILINE)
_ANY_END = re.compile(r'^\[End\b[^\n]*(?:\n|\Z)', re.MULTILINE)
_MOST_NOTES = 8

_SYMBOL = re.compile(r'(?=[0-9&*-]*[A-Z])[A-Z0-9][A-Z0-9&*-]{0,24}', re.ASCII)
_FORMULA = re.compile(
    r'\s+has (?:informed|submitted) the (?:stock )?exchange(?: regarding| about| that)?\s+', re.IGNORECASE
)
_TEXT_START = re.compile(
    r'\s(?=(?:The (?:President|Company|Board)|This is|We|In (?:continuation|accordance|terms|reference)|Pursuant to'
    r'|Disclosure under|Intimation (?:of|for|under)|With reference|Further to|Members of|Please)\s)'
)
_TO_THE_EXCHANGE = re.compile(r'inform(?:s|ed)? the (?:stock )?exchange')
_FILLERS = frozenset(
    (
        'a',
        'about',
        'for',
        'of',
        'on',
        'the',
        'to',
        'event',
        'related',
        'receiving',
        'awarding',
        'order',
        's',
        'contract',
    )
)
# Subjects that come without a second symbol behind them; the text begins right after.
_SUBJECTS = (
    'Analysts/Institutional Investor Meet/Con. Call Updates',
    'Action(s) initiated or orders passed',
    'Action(s) taken or orders passed',
    'Allotment of Securities',
    'Bagging/Receiving of orders/contracts',
    'Board Meeting Intimation',
    'Committee Meeting Updates',
    'Copy of Newspaper Publication',
    'Corporate Insolvency Resolution Process',
    'Credit Rating',
    'Diversification/Disinvestment',
    'Dividend',
    'General Updates',
    'Outcome of Board Meeting',
    'Press Release',
    'Shareholders meeting',
    'Updates',
)


@dataclass(frozen=True)
class Announcement:
    """One announcement of a company.

    Attributes:
        company: The company's name as it stands there.
        symbol: The exchange's symbol for it.
        subject: The exchange's heading for it; empty where none could be told from the text.
        text: What the company says, verbatim.
    """

    company: str
    symbol: str
    subject: str
    text: str

    @property
    def particulars(self) -> str:
        """The text without `COMPANY has informed the Exchange regarding` in front."""
        formula = _FORMULA.search(self.text, 0, len(self.company) + 80)
        if formula and self.text[: formula.start()].lower() in (self.company.lower(), 'the company'):
            return self.text[formula.end() :]
        return self.text

    @property
    def is_bare(self) -> bool:
        """Whether the text says no more than the subject does."""
        return _words(self.particulars) <= _words(self.subject) | _FILLERS

    def quote(self, limit: int) -> str:
        """Returns `SYMBOL, subject: particulars`, with `…` where the usual words in front were left out."""
        heading = f'{self.symbol}, {clipped(self.subject, 120)}' if self.subject else self.symbol
        if self.is_bare:
            return heading
        cut = '' if self.particulars == self.text else '… '
        return f'{heading}: {cut}{clipped(self.particulars, limit)}'


@dataclass(frozen=True)
class Message:
    """What stands in a trigger's text.

    Attributes:
        front: What was put in front of the message: the summary of days before, notes in square brackets.
        announcement: The announcement that it is, or None.
        told: The lines that belong to no announcement, none of them blank.
    """

    front: str
    announcement: Announcement | None
    told: tuple[str, ...]


def read(text: str) -> Message:
    """Reads a trigger's text.

    It is an announcement when its first or its last line is one: the text of one may go on over more lines, and
    something unknown may stand in front of one.
    """
    front, body = split_front(text)
    lines = lines_of(body)
    if not lines:
        return Message(front, None, ())
    first = announcement_of(lines[0])
    if first is not None:
        return Message(front, replace(first, text=' '.join([first.text, *lines[1:]])), ())
    last = announcement_of(lines[-1]) if len(lines) > 1 else None
    return Message(front, last, tuple(lines[:-1] if last else lines))


def _words(text: str) -> set[str]:
    return set(re.findall(r'\w+', text.lower()))


def split_front(text: str) -> tuple[str, str]:
    """Returns what was put in front of a message (a summary of before, notes in square brackets), and the message."""
    body = text
    for _ in range(_MOST_NOTES):
        start = body.lstrip()
        if not start.startswith('['):
            break
        line, _, after = start.partition('\n')
        is_note = line.rstrip().endswith(']')
        if line.startswith(_FRAME_STARTS) or line.rstrip().endswith(':]') or not is_note:
            end = _FRAME_END.search(start) or _ANY_END.search(start)
            if end is None and not is_note:
                break
            after = start[end.end() :] if end else after
        if not after.strip():
            break
        body = after
    return text[: len(text) - len(body)], body


def announcement_of(line: str) -> Announcement | None:
    """Reads one line as an announcement; None when it is none."""
    head, colon, rest = line.partition(' : ')
    words = head.rsplit(None, 1)
    if not colon or len(head) > 300 or len(words) != 2 or not _SYMBOL.fullmatch(words[1]):
        return None
    company, symbol = words[0].strip(), words[1]
    rest = rest.strip()
    at = rest.find(f' {symbol} ', 0, 300)
    behind = rest[at + len(symbol) + 2 :].lstrip() if at >= 0 else ''
    if behind.startswith(':'):
        return Announcement(company, symbol, rest[:at].strip(), behind[1:].strip())
    length = _subject_length(rest[:400], company)
    return None if length is None else Announcement(company, symbol, rest[:length].strip(), rest[length:].strip())


def _subject_length(rest: str, company: str) -> int | None:
    xbrl = rest.find('-XBRL ')
    if xbrl > 0:
        return xbrl + len('-XBRL')
    for subject in _SUBJECTS:
        if rest.startswith(subject) and rest[len(subject) : len(subject) + 1] in ('', ' '):
            return len(subject)
    lowered = rest.lower()
    named = lowered.find(' ' + company.lower()) if len(lowered) == len(rest) else -1
    if named <= 0 and not _TO_THE_EXCHANGE.search(lowered):
        return None
    start = _TEXT_START.search(rest)
    return min((at for at in (named, start.start() if start else 0) if at > 0), default=0)


def lines_of(text: str) -> list[str]:
    """Returns the lines of a text that are not blank, without the white space around them."""
    return [line for part in LINE_END.split(text) if (line := part.strip())]


def sentences_of(text: str) -> Iterator[str]:
    """Yields the sentences of a text, verbatim."""
    begin = 0
    for end in SENTENCE_END.finditer(text):
        yield text[begin : end.start()]
        begin = end.end()
    yield text[begin:]


def clipped(text: str, limit: int) -> str:
    """Returns a text of more than `limit` characters as its first whole sentences within it, and what was left out.

    Nothing is cut inside a sentence, so that no figure loses its unit: one too long is left out whole. What is said
    about it takes up to 40 characters more.
    """
    if len(text) <= limit:
        return text
    end = 0
    for sentence_end in SENTENCE_END.finditer(text, 0, limit + 1):
        end = sentence_end.start()
    note = f'[{len(text) - end} characters left out]'
    return f'{text[:end]} {note}' if end else note


def model_answer(exchange: Heard) -> str:
    """Returns what a model answered; empty where none was asked, for that only quotes what was said before."""
    return '' if exchange.answer.endswith(NO_MODEL) else exchange.answer


def india_time(exchange: Heard) -> str:
    """Returns when an exchange finished, as HH:MM in IST; `--:--` where its time can't be read."""
    try:
        instant = datetime.fromisoformat(exchange.finished_at)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return f'{instant.astimezone(INDIA):%H:%M}'
    except (ValueError, OverflowError):
        return '--:--'
