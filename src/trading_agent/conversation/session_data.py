"""A session as a dictionary that JSON can hold, and its count of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from trading_agent.conversation.history import History
from trading_agent.errors import InvalidInput
from trading_agent.messages import Usage, message_from

FORMAT_VERSION = 1
USAGE_KEYS = ('prompt_tokens', 'completion_tokens', 'total_tokens')


@dataclass(frozen=True)
class SessionData:
    """What a dictionary of a session says.

    Attributes:
        session_id: Its id, or None for a new one.
        system: What stands above the conversation, or None for the agent's own.
        created_at: When it was created, as an ISO 8601 string, or None for now.
        token_usage: Tokens used.
        history: What was said.
    """

    session_id: str | None
    system: str | None
    created_at: str | None
    token_usage: dict[str, int]
    history: History


def to_data(data: SessionData) -> dict[str, Any]:
    """Returns a session as plain dictionaries, lists, texts and numbers."""
    return {
        'version': FORMAT_VERSION,
        'session_id': data.session_id,
        'system': data.system,
        'created_at': data.created_at,
        'token_usage': dict(data.token_usage),
        'messages': msgspec.to_builtins(data.history.messages),
    }


def from_data(data: object) -> SessionData:
    """Reads a dictionary of a session. Only its `messages` are needed; what it does not know it leaves out.

    Raises:
        InvalidInput: It is none, says what cannot be, or a newer version of the program wrote it.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(f'a session is a dictionary, not a {type(data).__name__}', _HINT)
    version = data.get('version', FORMAT_VERSION)
    if not isinstance(version, int) or version < 1:
        raise InvalidInput(f'version: {version!r} is no version of a session', _HINT)
    if version > FORMAT_VERSION:
        raise InvalidInput(
            f'version: {version} is newer than what this program knows, {FORMAT_VERSION}', 'upgrade trading-agent'
        )
    if not isinstance(data.get('messages'), list):
        raise InvalidInput('messages: there is no list of messages', _HINT)
    usage = data.get('token_usage')
    return SessionData(
        session_id=_text(data, 'session_id'),
        system=_text(data, 'system'),
        created_at=_instant(data),
        token_usage=counts_in({} if usage is None else usage, 'token_usage: '),
        history=History(_messages(data['messages'])),
    )


_HINT = 'give what Session.to_dict() returned'


def _messages(rows: list[Any]) -> list[Any]:
    messages = []
    for number, row in enumerate(rows):
        try:
            messages.append(message_from(row))
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f'message {number}: {error}', _HINT) from error
    return messages


def _text(data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f'{name}: {value!r} is no text', _HINT)
    return value


def _instant(data: Mapping[str, Any]) -> str | None:
    text = _text(data, 'created_at')
    try:
        if text is not None and datetime.fromisoformat(text).utcoffset() is None:
            raise InvalidInput(f'created_at: {text!r} has no zone', 'write it like 2026-10-19T03:45:00Z')
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f'created_at: {text!r} is no time', 'write it like 2026-10-19T03:45:00Z') from error
    return text


def counts_in(usage: object, where: str = '') -> dict[str, int]:
    """Returns the counts of tokens in a mapping; a missing or null one is zero.

    Raises:
        InvalidInput: It is no mapping, or one of the counts is no whole number from 0 on.
    """
    if not isinstance(usage, Mapping):
        raise InvalidInput(f'{where}tokens are counted in a dictionary, not in a {type(usage).__name__}')
    counts = {key: 0 if usage.get(key) is None else usage[key] for key in USAGE_KEYS}
    for key, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InvalidInput(f'{where}{key}: {count!r} is no number of tokens', 'give a whole number, or none')
    return counts


def counts_of(usage: Usage) -> dict[str, int]:
    """Returns tokens by those three names; what a cache had, or was given, is part of the prompt."""
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return dict(zip(USAGE_KEYS, (prompt, usage.output_tokens, usage.total_tokens), strict=True))
