"""What every model API is sent alike: names it accepts, and how it is told of a schema."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from trading_agent.messages import AssistantMessage
from trading_agent.providers.provider import ModelRequest
from trading_agent.trigger import storable

_ID = re.compile(r'[A-Za-z0-9_-]{1,40}')
_NO_NAME = re.compile(r'[^A-Za-z0-9_-]')
_LONGEST_NAME = 64
_INSTRUCTION = """\
Answer with one JSON value that fulfils this JSON Schema, and with nothing else: no explanation before or after it, \
no code fence.

"""


def call_id(own: str) -> str:
    """Returns the id of a tool call as every API takes it: an id of one may be none for another.

    The same id always becomes the same.
    """
    return own if _ID.fullmatch(own) else f'call_{hashlib.sha256(storable(own).encode()).hexdigest()[:24]}'


def tool_name(own: str) -> str:
    """Returns a tool's name as every API takes it: a model may have called one that it made up."""
    return _NO_NAME.sub('_', own)[:_LONGEST_NAME] or 'unknown'


def schema_instruction(schema: dict[str, Any]) -> str:
    """Returns what tells a model of a schema in words: a server may know no other way, or ignore it silently."""
    return _INSTRUCTION + storable(msgspec.json.encode(schema).decode())


def texts_of(request: ModelRequest) -> Iterator[str]:
    """Yields the texts of a request, the newest first."""
    for message in reversed(request.messages):
        yield message.text if isinstance(message, AssistantMessage) else message.content
    yield request.system or ''
