"""Keeps what was said out of what is told of a failure: a server may repeat what it was sent, a library likewise."""

import re
from collections.abc import Iterator

from trading_agent.errors import BackendError, InvalidAnswer, TradingAgentError
from trading_agent.routing.turn_runner import Turn
from trading_agent.trigger import storable

NOT_SHOWN = '… (it repeats what was said, which is not shown)'

_WINDOW = 24  # characters: what is shorter may well be the same by chance
_STRIDE = 4
_SHORTEST = 12  # characters of a text that is repeated whole
_LONGEST = 2000

_ESCAPE = re.compile(r'\\+(?:u([0-9a-fA-F]{4})|([nrt])|(.))', re.DOTALL)


def without_conversation(error: Exception, turn: Turn) -> Exception:
    """Returns an error that does not repeat the conversation: what stands before that is kept, and its kind.

    It looks through all that was said: call it in a thread.

    Args:
        error: How a backend failed; it may be changed.
        turn: What the backend was asked.
    """
    texts = [_plain(text) for text in _said(error, turn) if len(text) >= _SHORTEST]
    hint = error.hint if isinstance(error, TradingAgentError) else ''
    told, hint_told = (_discreet(text, texts) if text else None for text in (str(error), hint))
    if told is None and hint_told is None:
        return error
    told = str(error) if told is None else told
    if not isinstance(error, TradingAgentError):
        return BackendError(f'{type(error).__name__}: {told}')
    error.args, error.hint = (told,), hint if hint_told is None else hint_told
    if isinstance(error, InvalidAnswer):
        error.problem = told
    return error


def _said(error: Exception, turn: Turn) -> Iterator[str]:
    yield from (turn.text, turn.instructions, turn.memory)
    for exchange in turn.exchanges:
        yield from (exchange.trigger_text, exchange.answer)
    if isinstance(error, InvalidAnswer):
        yield error.text


def _discreet(text: str, said: list[str]) -> str | None:
    """Returns what may be told of a text; None where it repeats nothing."""
    text = _plain(text[:_LONGEST])
    everything = '\n'.join(said)
    begins = [text.find(own) for own in said if len(own) <= _WINDOW + _STRIDE and own in text]
    windows = range(0, len(text) - _WINDOW + 1, _STRIDE)
    begins += [start for start in windows if text[start : start + _WINDOW] in everything][:1]
    if not begins:
        return None
    begin = min(begins)
    while begin and text[begin - 1 : begin + _WINDOW - 1] in everything:
        begin -= 1
    return storable(text[:begin].rstrip(' \'"`') + NOT_SHOWN)


def _plain(text: str) -> str:
    """Returns a text in one line, whether it came as it is or as JSON, or Python, writes it."""
    return ' '.join(_ESCAPE.sub(_unescaped, text).split())


def _unescaped(escape: re.Match[str]) -> str:
    code, blank, sign = escape.groups()
    return chr(int(code, 16)) if code else ' ' if blank else sign
