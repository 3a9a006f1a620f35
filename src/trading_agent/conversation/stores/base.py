"""What a store of sessions promises, whatever it keeps them in, and the one form in which all of them keep one.

A store of your own calls `encode_id` and `encode_data` before it touches anything: it then takes and refuses what
the others do. `trading_agent.testing.SessionStoreContract` has these promises as tests.
"""

import json
import math
from abc import ABC, abstractmethod
from typing import Any

from trading_agent.errors import TradingAgentError
from trading_agent.trigger import storable

MAX_NESTING = 200
"""How deep objects and lists may be nested, the data itself counted: any thread can read that back."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(',', ':'))


class InvalidSession(TradingAgentError, ValueError):
    """Raised when a session's id or data can never be kept. What was saved before stays as it was.

    Attributes:
        session_id: The session, as it was given.
    """

    def __init__(self, session_id: object, what: str, hint: str) -> None:
        shown = 'a session'
        if isinstance(session_id, str):
            shown = f'the session {session_id[:80]!r}' + ('...' if len(session_id) > 80 else '')
        super().__init__(f'{shown} cannot be kept: {what}', hint)
        self.session_id = session_id


class SessionStore(ABC):
    """Where the histories of sessions are kept from one run to the next.

    An id is any text but the empty one, of any length; two ids that differ in anything are two sessions. Data is
    a dictionary of plain JSON: text keys, and inside it dictionaries, lists, text, whole numbers, finite numbers,
    true, false and None, at most 200 deep. What is loaded equals what was saved and shares nothing with it. Only a
    lone surrogate, which no UTF-8 can hold, comes back as U+FFFD.

    A session is replaced whole or not at all. The last one to save it wins. All methods block, and may be called
    from several threads at once.
    """

    @abstractmethod
    def save(self, session_id: str, data: dict[str, Any]) -> None:
        """Keeps a session's data, in place of any that was there. Later changes of `data` change nothing.

        Args:
            session_id: The session.
            data: Plain JSON.

        Raises:
            InvalidSession: The id is empty or has a lone surrogate, or the data is no plain JSON. The old data stays.
            StorageError: It could not be written. The old data stays.
        """

    @abstractmethod
    def load(self, session_id: str) -> dict[str, Any] | None:
        """Returns a session's data, a new copy each time, or None where there is no such session.

        Raises:
            InvalidSession: No session can have this id.
            StorageError: It could not be read. That is not "missing".
        """

    @abstractmethod
    def delete(self, session_id: str) -> bool:
        """Forgets a session.

        Returns:
            Whether it was there.

        Raises:
            InvalidSession: No session can have this id.
            StorageError: It could not be deleted; it is still there.
        """

    @abstractmethod
    def list_sessions(self) -> list[str]:
        """Returns the id of every session, sorted by code points, as `sorted` does.

        Raises:
            StorageError: They could not be read.
        """

    def exists(self, session_id: str) -> bool:
        """Returns whether there is such a session.

        Raises:
            InvalidSession: No session can have this id.
            StorageError: It could not be read.
        """
        return self.load(session_id) is not None


def encode_id(session_id: str) -> bytes:
    """Returns an id as UTF-8. Different ids give different bytes, which sort as the ids do.

    Raises:
        InvalidSession: It is empty, has a lone surrogate, or is no text.
    """
    if not isinstance(session_id, str):
        what = f'its id is text, not {type(session_id).__name__}'
        raise InvalidSession(session_id, what, 'turn the id into text first')
    if not session_id:
        raise InvalidSession(session_id, 'its id is empty', 'give each session an id of its own')
    try:
        return session_id.encode()
    except UnicodeEncodeError:
        what = 'its id has a lone surrogate, which UTF-8 cannot hold'
        raise InvalidSession(session_id, what, 'make the id from letters and digits, such as uuid4().hex') from None


def encode_data(session_id: str, data: dict[str, Any]) -> str:
    """Returns a session's data as JSON text that `decode_data` turns into an equal dictionary.

    A lone surrogate becomes U+FFFD, and two that make up a pair the character that they stand for.

    Args:
        session_id: Named in the error.
        data: Plain JSON.

    Raises:
        InvalidSession: It is something else; says what, and where in the data.
    """
    try:
        text = _ENCODER.encode(data)
        # Tuples, keys that are numbers and the like pass the encoder and come back as something else.
        same = text.startswith('{') and json.loads(text) == data and _depth_is_fine(data, text)
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise _refused(session_id, _objection(data))
    clean = storable(text)
    if clean is not text and _has_doubled_keys(clean):
        raise _refused(session_id, 'two keys in it differ in nothing but lone surrogates')
    return clean


def decode_data(text: str) -> dict[str, Any]:
    """Reads what `encode_data` returned.

    Raises:
        ValueError: It is no JSON object.
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError('no JSON object')  # noqa: TRY004 - as the decoder's errors
    return data


def _refused(session_id: str, what: str) -> InvalidSession:
    hint = 'save plain JSON: dictionaries with text keys, lists, text, finite numbers, true, false and None'
    return InvalidSession(session_id, what, hint)


def _depth_is_fine(data: dict[str, Any], text: str) -> bool:
    if text.count('[') + text.count('{') <= MAX_NESTING:
        return True
    level: list[Any] = [data]
    for _ in range(MAX_NESTING):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return True
    return False


def _has_doubled_keys(text: str) -> bool:
    doubled = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal doubled
        doubled = doubled or len(dict(pairs)) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return doubled


def _objection(data: object) -> str:
    """Says what in the data is no plain JSON, and where."""
    if not isinstance(data, dict):
        return f'its data is a dictionary, not {type(data).__name__}'
    pending: list[tuple[str, object, int]] = [('data', data, 1)]
    while pending:
        where, value, depth = pending.pop()
        if isinstance(value, dict | list) and depth > MAX_NESTING:
            return f'its data is nested deeper than {MAX_NESTING} levels, or contains itself'
        if isinstance(value, dict):
            if odd := [type(key).__name__ for key in value if not isinstance(key, str)]:
                return f'{where[:500]} has a key that is {odd[0]}, not text'
            pending += [(f'{where}[{str(key)[:80]!r}]', item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f'{where}[{number}]', item, depth + 1) for number, item in enumerate(value)]
        elif what := _odd_value(value):
            return f'{where[:500]} is {what}'
    return 'its data comes back from JSON as something else'


def _odd_value(value: object) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else f'{value}, which JSON does not have'
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError:
            return 'a number with more digits than Python turns into text'
        return None
    return None if value is None or isinstance(value, str) else f'of type {type(value).__name__}'
