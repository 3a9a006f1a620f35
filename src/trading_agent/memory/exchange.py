"""One finished turn, and the line that it is in a session's log."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from trading_agent import json_lines
from trading_agent.trigger import storable

_REQUIRED = ('trigger_text', 'answer', 'backend_name', 'finished_at')
_EXTRAS = ('trigger_id', 'started_at', 'usage')


@dataclass(frozen=True)
class Exchange:
    """One finished turn: what the desk was told and what it answered.

    Attributes:
        trigger_text: What the desk was told, a summary in front of it included.
        answer: The final answer.
        backend_name: The backend that answered.
        finished_at: When the turn finished, as an ISO 8601 string in UTC.
        trigger_id: The trigger's id, the first one's where several were gathered, or None where it is not known.
        started_at: When the turn was started, as an ISO 8601 string in UTC, or None.
        usage: Tokens used, by kind, or None.
        trigger_ids: The ids of all triggers that were gathered into the turn, in order; empty where it was one.
    """

    trigger_text: str
    answer: str
    backend_name: str
    finished_at: str
    trigger_id: str | None = None
    started_at: str | None = None
    usage: dict[str, int] | None = None
    trigger_ids: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the triggers that it answers; empty where they are not known."""
        return self.trigger_ids or (() if self.trigger_id is None else (self.trigger_id,))

    def to_json_dictionary(self) -> dict[str, Any]:
        """Converts the exchange to a dictionary that json.dumps can write; extra fields that are empty are left out."""
        data = {name: getattr(self, name) for name in _REQUIRED}
        data |= {name: value for name in _EXTRAS if (value := getattr(self, name))}
        if self.trigger_ids:
            data['trigger_ids'] = list(self.trigger_ids)
        return data

    @classmethod
    def from_json_dictionary(cls, data: dict[str, Any]) -> Self:
        """Reads an exchange written by to_json_dictionary.

        Raises:
            KeyError: A field is missing.
            ValueError: A field that is text is something else.
        """
        required = {name: data[name] for name in _REQUIRED}
        for name, value in required.items():
            if not isinstance(value, str):
                raise ValueError(f'{name} is no text: {type(value).__name__}')  # noqa: TRY004 - as the decoder's errors
        usage = data.get('usage')
        return cls(
            **required,
            trigger_id=_text_or_none(data.get('trigger_id')),
            started_at=_text_or_none(data.get('started_at')),
            usage=usage if isinstance(usage, dict) and all(map(_is_count, usage.values())) else None,
            trigger_ids=_texts(data.get('trigger_ids')),
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 64


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else ()


def answer_to(exchanges: Sequence[Exchange], trigger_id: str) -> Exchange | None:
    """Returns the last of these exchanges that answers a trigger, or None."""
    return next((exchange for exchange in reversed(exchanges) if trigger_id in exchange.answers), None)


_DECODER = msgspec.json.Decoder(Exchange)

NO_EXCHANGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What `decode_line` raises for a line that is none."""


def encode_line(exchange: Exchange) -> bytes:
    """Returns the exchange as one line of a log, its newline included. Any text is storable."""
    return json_lines.encode(exchange.to_json_dictionary())


def decode_line(line: bytes) -> Exchange:
    """Reads one line of a log.

    Raises:
        NO_EXCHANGE: One of these: it is no such line, or a field is missing.
    """
    try:
        exchange = _DECODER.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        # Stricter than the standard library in places: a lone surrogate written as an escape, a BOM, an odd extra.
        loaded = json.loads(line.decode('utf-8-sig'))
        exchange = Exchange.from_json_dictionary(
            {key: storable(value) if isinstance(value, str) else value for key, value in loaded.items()}
        )
    return exchange


def last_exchanges(path: Path, count: int) -> list[Exchange]:
    """Reads the last exchanges of a log, oldest first, from its end; a line that is none is left out.

    Raises:
        StorageError: The log is there and cannot be read.
    """
    found: list[Exchange] = []
    for line in json_lines.read_back(path):
        if len(found) >= count:
            break
        with suppress(*NO_EXCHANGE):
            found.append(decode_line(line))
    return found[::-1]
