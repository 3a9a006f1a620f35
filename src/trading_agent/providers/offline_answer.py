"""The `offline` provider's answers: made from the conversation so far and Memory.md, without asking a model.

Nothing here does I/O, and the same exchanges always give the same words. Every answer ends by saying what it is.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from trading_agent.providers.announcement import (
    BULLET,
    NO_MODEL,
    Announcement,
    Message,
    clipped,
    india_time,
    lines_of,
    model_answer,
    read,
    split_front,
)
from trading_agent.providers.extract import rules_in
from trading_agent.providers.heard import Heard

LONGEST_ANSWER = 2000  # characters
MOST_PIECES = 20

_QUOTE = 260
_MOST_WORDS = 12
_WORD = re.compile(r'[^\W_](?:[\w&.,-]*[^\W_])?')
_FRAME_LINE = re.compile(r'^\[.*$', re.MULTILINE)
_COMMON = frozenset(
    _WORD.findall(
        """about above after again against also among and announcement announcements any anything are ask been before
        being below between but can company could did does doing done down during each earlier ever exchange few for
        from further has have having here how into its just limited made make more most much must never not now off
        once one only other our out over please said same say says session should show since some something such tell
        than that the their them then there these they this those through today told under until very was well were
        what when where which while who whom whose why will with would yesterday you your"""
    )
)


def answer(text: str, exchanges: Sequence[Heard], memory: str) -> str:
    """Answers a trigger from what the desk has heard before.

    An announcement is told with its symbol and subject, and with what the same company said earlier; a person's
    message with the earlier exchanges and the lines of Memory.md that share its rarest words. Everything is quoted.

    Args:
        text: The trigger's text; a summary of before and notes may stand in front of the message.
        exchanges: The session so far, oldest first.
        memory: The text of Memory.md.

    Returns:
        At most 2,000 characters; never empty.
    """
    message = read(text)
    new = message.announcement
    # Lines in front of an announcement are no message: what stands there came before, too.
    first = [split_front(exchange.trigger_text)[0] for exchange in exchanges[:1]]
    before = _FRAME_LINE.sub('', '\n'.join([message.front, *(message.told if new else ()), *first]))
    if new is not None:
        return _bounded(_about_company(new, exchanges, memory, before))
    return _bounded(_about_words(message, exchanges, memory, before))


def pieces(text: str) -> Iterator[str]:
    """Cuts an answer between words into at most 20 pieces, as a model's would come; together they are the answer."""
    words = re.findall(r'\s*\S+\s*|\s+', text)
    size = math.ceil(len(words) / MOST_PIECES)
    for begin in range(0, len(words), size or 1):
        yield ''.join(words[begin : begin + size])


def _about_company(new: Announcement, exchanges: Sequence[Heard], memory: str, before: str) -> list[str]:
    symbol = new.symbol
    named = _whole(symbol)
    own: list[tuple[Heard, Announcement]] = []
    told: list[str] = []
    for exchange in exchanges:
        if symbol not in exchange.trigger_text:
            continue
        message = read(exchange.trigger_text)
        if message.announcement is not None and message.announcement.symbol == symbol:
            own.append((exchange, message.announcement))
        told += [f'- {india_time(exchange)} {_quoted(line)}' for line in message.told if named.search(line)]
    lines = [f'{symbol}: {clipped(new.subject, 120) or "an announcement without a heading"}.']
    if not own:
        lines.append('It is the first announcement of this company in this session.')
    elif len(own) == 1:
        lines.append('This company has made 1 announcement before in this session:')
    else:
        lines.append(f'This company has made {len(own)} announcements before in this session, the newest being:')
    lines += [f'- {india_time(exchange)} {earlier.quote(_QUOTE)}' for exchange, earlier in own[:-3:-1]]
    lines += _section('The desk was told about it:', told[:-3:-1])
    lines += _section('Memory.md has:', _lines_with(named, memory))
    return lines + _section('From before this session:', _lines_with(named, before))


def _about_words(message: Message, exchanges: Sequence[Heard], memory: str, before: str) -> list[str]:
    words = _telling_words(message)
    symbols = [word for word, is_symbol in words.items() if is_symbol]
    said = [_said(exchange) for exchange in exchanges]
    weights, scores = _search(words, said)
    named = weights
    if symbols:
        # Who names a symbol does not want to hear of others.
        named, hits = _search(dict.fromkeys(symbols, True), said)
        scores = {number: scores[number] for number in hits}
    best = sorted(scores, key=lambda number: (-scores[number], -number))[:3]
    found = [_hit(exchanges[number], weights) for number in best if scores[number] >= scores[best[0]] / 2]
    lines = _section('Noted as told, word for word:', [f'- {_quoted(rule)}' for rule in rules_in(message)[:3]])
    lines += _section(f'Nearest of the {len(exchanges)} exchanges so far in this session:', found)
    if not found:
        about = ', '.join(symbols[:5]).upper() if symbols else 'this'
        lines.append(f'Nothing about {about} was heard in the {len(exchanges)} exchanges so far in this session.')
    lines += _section('Memory.md has:', _best_lines(named, memory))
    return lines + _section('From before this session:', _best_lines(named, before))


def _search(words: dict[str, bool], said: Sequence[str]) -> tuple[dict[re.Pattern[str], float], dict[int, float]]:
    """Returns the weight of each word, rare ones weighing more, and the score of each exchange that has any."""
    weights: dict[re.Pattern[str], float] = {}
    scores: dict[int, float] = {}
    for word, is_symbol in words.items():
        pattern = _whole(word)
        near = [number for number, text in enumerate(said) if word in text]
        # A word in every third exchange says nothing; below ten there are too few to tell.
        if not is_symbol and len(near) > max(10, len(said) / 3):
            continue
        hits = [number for number in near if pattern.search(said[number])]
        weights[pattern] = math.log(1 + (len(said) + 1) / (len(hits) + 1))
        for number in hits:
            scores[number] = scores.get(number, 0.0) + weights[pattern]
    return weights, scores


def _said(exchange: Heard) -> str:
    """Returns an exchange in lower case to be searched; empty for a question to which no model gave an answer."""
    body = split_front(exchange.trigger_text)[1]
    given = model_answer(exchange)
    if not given and body.rstrip().endswith('?'):
        return ''
    return f'{body}\n{given}'.lower()


def _telling_words(message: Message) -> dict[str, bool]:
    """Returns the words worth searching for, in lower case, and whether each is a symbol.

    Symbols and figures come first, then the longest words.
    """
    words = [word for word in _WORD.findall(' '.join(message.told)[-4000:]) if word.lower() not in _COMMON]
    chosen = [word for word in words if 2 < len(word) <= 40 or (len(word) == 2 and word.isupper())]
    chosen.sort(key=lambda word: (not _is_symbol(word), not any(char.isdigit() for char in word), -len(word)))
    telling: dict[str, bool] = {}
    for word in chosen:
        stem = word.lower() if _is_symbol(word) else _stem(word.lower())
        telling.setdefault(stem, _is_symbol(word))
    return dict(list(telling.items())[:_MOST_WORDS])


def _is_symbol(word: str) -> bool:
    return word.isupper() and any(char.isalpha() for char in word)


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 4 and word.endswith('s') and word.isalpha() else word


def _whole(word: str) -> re.Pattern[str]:
    """Returns what finds a symbol as it is; a word in lower case in any case, from four letters on with an ending."""
    if word.isupper():
        return re.compile(rf'(?<!\w){re.escape(word)}(?!\w)')
    return re.compile(rf'(?<!\w){re.escape(word)}' + r'(?!\w)' * (len(word) < 4), re.IGNORECASE)


def _hit(exchange: Heard, weights: dict[re.Pattern[str], float]) -> str:
    message = read(exchange.trigger_text)
    if message.announcement is not None:
        told = message.announcement.quote(_QUOTE)
    else:
        told = _quoted(max(message.told, key=lambda line: _score(line, weights), default=''))
    given = max(lines_of(model_answer(exchange)), key=lambda line: _score(line, weights), default='')
    return f'- {india_time(exchange)} {told}' + (f' → answered: {_quoted(given)}' if given else '')


def _score(line: str, weights: dict[re.Pattern[str], float]) -> float:
    return sum(weight for pattern, weight in weights.items() if pattern.search(line))


def _best_lines(weights: dict[re.Pattern[str], float], text: str) -> list[str]:
    scored = [(_score(line, weights), line) for line in lines_of(text)] if weights else []
    best = sorted((entry for entry in scored if entry[0] > 0), key=lambda entry: -entry[0])
    return [f'- {_quoted(line)}' for _, line in best[:2]]


def _lines_with(named: re.Pattern[str], text: str) -> list[str]:
    if not named.search(text):
        return []
    return [f'- {_quoted(line)}' for line in lines_of(text) if named.search(line)][:2]


def _quoted(line: str) -> str:
    return clipped(BULLET.sub('', line), _QUOTE)


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return [heading, *lines] if lines else []


def _bounded(lines: Iterable[str]) -> str:
    kept: list[str] = []
    room = LONGEST_ANSWER - len(NO_MODEL)
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return '\n'.join([*kept, NO_MODEL])
