"""The body of a request: read up to a limit, decoded strictly, and told in plain words where it is wrong."""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from trading_agent.errors import TradingAgentError
from trading_agent.trigger import storable

T = TypeVar('T')


class BadRequest(TradingAgentError):
    """Raised when a request makes no sense: nothing was done."""


class NoRoom(TradingAgentError):
    """Raised when other clients send so much at this moment that there is no room for more."""


class Room:
    """How much of the bodies that are being read is held at once, over all requests.

    Args:
        size: How many bytes.
    """

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    def take(self, size: int) -> None:
        """Takes room for some bytes.

        Raises:
            NoRoom: There is none.
        """
        self._left -= size
        if self._left < 0:
            what = f'the daemon is being sent more than {self._size >> 20} MiB at once'
            raise NoRoom(what, 'send it again in a moment')

    def give_back(self, size: int) -> None:
        """Gives back what was taken."""
        self._left += size


async def read_body(request: Request, most: int, room: Room | None = None) -> bytes | None:
    """Reads the body, or returns None where it is longer than `most` bytes.

    Raises:
        NoRoom: Other bodies take up all the room that there is.
    """
    room = room or Room(2 * most)
    body = bytearray()
    taken = 0
    try:
        async for piece in request.stream():
            taken += len(piece)
            room.take(len(piece))
            body += piece
            if len(body) > most:
                return None
        return bytes(body)
    finally:
        room.give_back(taken)


def decode_body(body: bytes, kind: type[T], *, example: str, hints: Mapping[str, str]) -> T:
    """Reads a body as one object.

    Args:
        body: The body.
        kind: What it is; a struct.
        example: A body that is right, for the hint.
        hints: What to write under a key instead, where that is not plain; under '' what else helps.

    Raises:
        BadRequest: It is no JSON, or not of this kind; the hint tells how to mend it.
    """
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, RecursionError) as error:
            return convert(_decode_leniently(body, error, example), kind, hints=hints)
    except msgspec.ValidationError as error:
        raise BadRequest(*_explained(str(error), kind, hints)) from error


def convert(value: object, kind: type[T], *, hints: Mapping[str, str]) -> T:
    """Reads what was decoded already, or did not come as JSON.

    Raises:
        BadRequest: It is not of this kind.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(*_explained(str(error), kind, hints)) from error


def _decode_leniently(body: bytes, first: Exception, example: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Reads what msgspec is too strict for: a lone surrogate written as an escape, and a byte order mark."""
    try:
        return _storable(json.loads(body.decode('utf-8-sig')))
    except (ValueError, RecursionError):
        raise BadRequest(f'the body is not JSON: {first}', f'send one object such as {example}, as UTF-8') from first


def _storable(value: object) -> object:
    if isinstance(value, dict):
        return {storable(key): _storable(item) for key, item in value.items()}
    return storable(value) if isinstance(value, str) else value


def _explained(message: str, kind: type, hints: Mapping[str, str]) -> tuple[str, str]:
    what, _, place = message.partition(' - at ')
    key = place.strip('`').removeprefix('$').lstrip('.')
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    if unknown := re.search(r'unknown field `(.*)`', what, re.DOTALL):
        near = difflib.get_close_matches(unknown[1], fields, 1, 0.5)
        return (
            f'there is no key {unknown[1]!r}',
            f'did you mean {near[0]!r}?' if near else f'it has {", ".join(fields)}',
        )
    return (f'{key}: {what}' if key else what), hints.get(key, hints.get('', ''))
