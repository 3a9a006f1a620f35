"""What can be kept of a day without asking a model: lines of its exchanges, verbatim, within a budget.

In a summary the first paragraph, `HH:MM` at the start of a line, a count like `12x` and what stands in square
brackets and ends in `left out` are its own words. Every other figure and symbol stands in the exchanges as it is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from trading_agent.providers.announcement import (
    BULLET,
    Announcement,
    Message,
    clipped,
    india_time,
    lines_of,
    model_answer,
    read,
    sentences_of,
)
from trading_agent.providers.heard import Heard

_QUOTE = 420  # characters of one quoted line
_NOTE_ROOM = len('\n[1000000 more left out]')

_LASTING = re.compile(
    r'\b(?:never|always|limits?|remember|rules?|must|stop[- ]?loss(?:es)?|do not|don[\'\u2019]t|from now on'
    r'|no more than|not more than|at most|not allowed|standing (?:order|instruction))\b',
    re.IGNORECASE,
)
_DECIDED = re.compile(r'\b(?:decided|decision|agreed|we will|going forward)\b', re.IGNORECASE)

_AMOUNT = re.compile(r'(?:\b(?:Rs|INR|USD|EUR|EURO)\b\.?|₹|&#8377;|[$€£])\s*\d', re.IGNORECASE)
_QUANTITY = re.compile(r'\d\s*(?:%|(?:crores?|cr|lakhs?|lacs?|million|mn|billion|bn|[MG]Wh?|bps)\b)', re.IGNORECASE)
_DEAL = re.compile(
    r'\b(?:net|p&l|pnl|profit|loss|booked|bought|sold|long|short|positions?|exposure|margin|lots?)\b', re.IGNORECASE
)
_NOTABLE = re.compile(
    r'\b(?:orders?|contracts?|letter of award|dividend|bonus|buy-?back|rights issue|stock split|results|profit|loss'
    r'|revenue|turnover|acquisition|stake|merger|amalgamation|de-?merger|open offer|offer for sale|insolvency|default'
    r'|fraud|penalty|fine|levied|resign\w*|suspen\w+|downgrade\w*|upgrade\w*|approval|FDA|commercial operation'
    r'|preferential issue|takeover|pledge\w*|withdrawn|secures|bags)\b',
    re.IGNORECASE,
)
_WEIGHTY_SUBJECT = re.compile(
    r'\b(?:orders?|contracts?|dividend|bonus|buy-?back|acquisition|merger|amalgamation|offer|insolvency|litigation'
    r'|material issue|disinvestment|disposal|revision|commercial production|suspension|preferential|auditors|licenses'
    r'|board meeting intimation)\b',
    re.IGNORECASE,
)
_ROUTINE = re.compile(
    r'schedule of|analyst|investor meet|newspaper|postal ballot|e-voting|s[cr]+utini[sz]er|transcript|link of recording'
    r'|trading window|ESOP|ESOS|stock option|stock units|share certificate|physical shares',
    re.IGNORECASE,
)
_FUND_PRICE = 'Declaration of NAV'  # every fund files its price every day


@dataclass(frozen=True)
class _Said:
    """One exchange of the day, read."""

    time: str
    message: Message
    answer: str


@dataclass(frozen=True)
class _Section:
    """A part of a summary.

    Attributes:
        heading: What it is about.
        share: Its part of the budget; what others leave is given to it on top.
        lines: Its lines with their place on the page, the ones to keep first in front.
        ranked: Whether the first line that does not fit ends it; else shorter ones behind it are taken.
    """

    heading: str
    share: float
    lines: list[tuple[int, str]]
    ranked: bool = True


def day_summary(exchanges: Sequence[Heard], budget: int) -> str:
    """Returns what is worth reading about a day the next morning, in at most `budget` characters.

    These are counts, what people asked the desk to keep to, orders, results and money, the companies and subjects that
    came most, and the last exchanges. Lines are quoted whole or to the end of a sentence; what is left out is counted.
    """
    day = [
        _Said(india_time(exchange), read(exchange.trigger_text), model_answer(exchange).strip())
        for exchange in exchanges
    ]
    rules = _rules(day, (_LASTING, _DECIDED))
    told = {rule for _, rule in rules}
    tail = range(len(day))[-4:]
    sections = [
        _Section(
            'Standing instructions and decisions', 0.25, _newest_first(f'- {t} {r}' for t, r in rules), ranked=False
        ),
        _Section('Orders, results and money', 0.3, _figures(day, told), ranked=False),
        _Section('Subjects heard most', 0.2, _subjects(day)),
        _Section('Companies heard most', 0.1, _companies(day)),
        _Section('Other messages', 0.05, _newest_first(_others(day[: len(day) - len(tail)], told))),
        _Section('Last exchanges', 0.1, _newest_first(_line(day[number]) for number in tail)),
    ]
    return _within(budget, _head(day, len(rules)), [section for section in sections if section.lines])


def folded_memory(memory: str, exchanges: Sequence[Heard], trading_date: date, budget: int) -> str:
    """Returns the new Memory.md: the old text, and under the day's heading the rules that people told and it lacks.

    Args:
        memory: The old text. It is never changed or cut.
        exchanges: The day's exchanges.
        trading_date: The day.
        budget: The longest new text, in characters. Rules that do not fit are dropped.
    """
    known = {_normal(line) for line in lines_of(memory)}
    heading = f'## Lessons of {trading_date.isoformat()}'
    under = [line for line in lines_of(memory) if line.startswith('## ')][-1:] == [heading]
    if under:
        added = '' if memory.endswith('\n') else '\n'
    else:
        gap = '' if not memory or memory.endswith('\n\n') else '\n' if memory.endswith('\n') else '\n\n'
        added = f'{gap}{heading}\n\n'
    bullets = ''
    for _, line in _rules([_Said('', read(exchange.trigger_text), '') for exchange in exchanges], (_LASTING,)):
        bullet = f'- {line}\n'
        if _normal(line) not in known and len(memory) + len(added) + len(bullets) + len(bullet) <= budget:
            known.add(_normal(line))
            bullets += bullet
    return memory + added + bullets if bullets else memory


def rules_in(message: Message) -> list[str]:
    """Returns the lines of a message that ask the desk to keep to something, verbatim; questions are none."""
    return [line for _, line in _rules([_Said('', message, '')], (_LASTING, _DECIDED))]


def _rules(day: Iterable[_Said], words: Sequence[re.Pattern[str]]) -> list[tuple[str, str]]:
    """Returns each rule once, with its time and as it was told last; a long line gives its sentences."""
    found: dict[str, tuple[str, str]] = {}
    for said in day:
        for line in said.message.told:
            if not any(word.search(line) for word in words):
                continue
            for part in [line] if len(line) <= _QUOTE else sentences_of(line):
                rule = BULLET.sub('', part.strip())
                if not rule.endswith('?') and any(word.search(rule) for word in words):
                    found.pop(_normal(rule), None)
                    found[_normal(rule)] = (said.time, rule)
    return list(found.values())


def _normal(line: str) -> str:
    return ' '.join(BULLET.sub('', line).split()).rstrip('.!').casefold()


def _figures(day: Sequence[_Said], told: set[str]) -> list[tuple[int, str]]:
    """Returns the lines about orders, results and money, the most notable first."""
    scores: dict[str, tuple[float, int, str]] = {}
    for said in day:
        announcement = said.message.announcement
        if announcement is not None and (score := _notability(announcement)) >= 3:
            quoted = announcement.quote(_QUOTE)
            scores.setdefault(quoted, (score, len(scores), f'- {said.time} {quoted}'))
        answered = lines_of(said.answer)
        for prefix, line in [*(('', line) for line in said.message.told), *(('answered: ', line) for line in answered)]:
            if BULLET.sub('', line) not in told and _is_figure(line, answered=bool(prefix)):
                quoted = clipped(BULLET.sub('', line), _QUOTE)
                score = _weight(line) + 4 * bool(prefix or _DEAL.search(line))
                scores.setdefault(prefix + quoted, (score, len(scores), f'- {said.time} {prefix}{quoted}'))
    # A long line must be worth the room of two short ones; of two alike the later one is kept.
    best = sorted(scores.values(), key=lambda entry: (len(entry[2]) / 150 - entry[0], -entry[1]))
    return [(place, line) for _, place, line in best]


def _notability(announcement: Announcement) -> float:
    if announcement.is_bare or announcement.subject == _FUND_PRICE:
        return 0
    return _weight(announcement.particulars) + 1.5 * bool(_WEIGHTY_SUBJECT.search(announcement.subject))


def _weight(text: str) -> float:
    words = len({word.lower() for word in _NOTABLE.findall(text)})
    return (
        4 * bool(_AMOUNT.search(text))
        + 3 * bool(_QUANTITY.search(text))
        + 1.5 * min(words, 3)
        - 3 * bool(_ROUTINE.search(text))
    )


def _is_figure(line: str, *, answered: bool) -> bool:
    if answered and _DECIDED.search(line):
        return True
    if not any(char.isdigit() for char in line):
        return False
    return any(words.search(line) for words in (_AMOUNT, _QUANTITY, _DEAL)) and not line.endswith('?')


def _companies(day: Sequence[_Said]) -> list[tuple[int, str]]:
    subjects: dict[str, Counter[str]] = {}
    for announcement in _announcements(day):
        subjects.setdefault(announcement.symbol, Counter())[announcement.subject] += 1
    ranked = sorted(subjects.items(), key=lambda item: -item[1].total())
    lines = [
        f'- {symbol} {count.total()}x: {_listed([subject for subject in count if subject], 4, "; ")}'
        for symbol, count in ranked
        if count.total() > 1
    ]
    return list(enumerate(lines))


def _subjects(day: Sequence[_Said]) -> list[tuple[int, str]]:
    """Returns the counts of the subjects in one line, then those that can move a price with their companies."""
    symbols: dict[str, list[str]] = {}
    for announcement in _announcements(day):
        if announcement.subject:
            symbols.setdefault(announcement.subject, []).append(announcement.symbol)
    if not symbols:
        return []
    ranked = sorted(symbols.items(), key=lambda item: -len(item[1]))
    lines = [f'- {_listed([f"{len(who)}x {subject}" for subject, who in ranked], 8, "; ")}']
    lines += [
        f'- {len(who)}x {subject}: {_listed(list(dict.fromkeys(who)), 12, ", ")}'
        for subject, who in ranked
        if _WEIGHTY_SUBJECT.search(subject)
    ]
    return list(enumerate(lines))


def _announcements(day: Iterable[_Said]) -> Iterator[Announcement]:
    return (said.message.announcement for said in day if said.message.announcement is not None)


def _listed(words: Sequence[str], most: int, between: str) -> str:
    left = len(words) - most
    return between.join(words[:most]) + (f' [{left} more left out]' if left > 0 else '')


def _others(day: Sequence[_Said], told: set[str]) -> Iterator[str]:
    for said in day:
        if any(BULLET.sub('', line) not in told for line in said.message.told):
            yield _line(said)


def _newest_first(lines: Iterable[str]) -> list[tuple[int, str]]:
    return list(enumerate(lines))[::-1]


def _line(said: _Said) -> str:
    """Returns one exchange as a line."""
    parts = [said.message.announcement.quote(240)] if said.message.announcement else []
    if said.message.told:
        parts.append(clipped(' / '.join(said.message.told), 300))
    if said.answer:
        parts.append(f'answered: {clipped(" / ".join(lines_of(said.answer)), 300)}')
    return f'- {said.time} ' + ' → '.join(parts)


def _head(day: Sequence[_Said], rules: int) -> str:
    """Returns the first paragraph: the counts."""
    if not day:
        return 'No exchanges.'
    symbols = [announcement.symbol for announcement in _announcements(day)]
    messages = sum(1 for said in day if said.message.told)
    counts = [
        f'{len(symbols)} announcements of {len(set(symbols))} symbols' * bool(symbols),
        f'{messages} {"other " * bool(symbols)}messages' * bool(messages),
        f'{rules} instructions or decisions' * bool(rules),
    ]
    return (
        f'{len(day)} exchanges from {day[0].time} to {day[-1].time} IST: {", ".join(filter(None, counts))}. '
        'No model was asked: what follows is quoted.'
    )


def _within(budget: int, head: str, sections: Sequence[_Section]) -> str:
    """Gives each section its share of the budget, and what is left over to the first ones that want more."""
    if len(head) > budget:
        return next(
            (part for part in (head.partition('. ')[0], head.partition(' from ')[0]) if len(part) <= budget), ''
        )
    room = budget - len(head)
    texts = [_fitted(section, int(room * section.share)) for section in sections]
    for number, section in enumerate(sections):
        spare = room - sum(map(len, texts))
        texts[number] = _fitted(section, len(texts[number]) + spare)
    return head + ''.join(texts)


def _fitted(section: _Section, room: int) -> str:
    """Returns a section with the lines that fit into `room` characters, and how many did not; empty if none do."""
    title = f'\n\n### {section.heading}'
    used = len(title) + _NOTE_ROOM
    kept = []
    for place, line in section.lines:
        if used + len(line) + 1 <= room:
            kept.append((place, line))
            used += len(line) + 1
        elif section.ranked:
            break
    left = len(section.lines) - len(kept)
    note = f'\n[{left} more left out]' if left else ''
    return title + ''.join(f'\n{line}' for _, line in sorted(kept)) + note if kept else ''
