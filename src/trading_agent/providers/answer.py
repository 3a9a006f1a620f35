"""An answer of a model API while it comes, whichever API it is: its pieces as events that can be kept."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from trading_agent.errors import BackendError, InvalidAnswer, TurnRefused
from trading_agent.messages import Usage
from trading_agent.providers.provider import Stopped
from trading_agent.trigger import storable
from trading_agent.turn_events import TextPiece, ToolCalled, TurnEvent, UsageCounted


class Answer:
    """Turns what comes of an answer into events, and sees to it that there is something in it."""

    def __init__(self) -> None:
        self._half = ''
        self._has_text = False
        self._has_calls = False
        self._counted = Usage()

    @property
    def is_empty(self) -> bool:
        """Whether there was no tool call so far, and no text but blanks."""
        return not self._has_text and not self._has_calls

    def text(self, piece: str) -> Iterator[TurnEvent]:
        """Yields a piece of text. Half a character waits for its other half; one that has none becomes U+FFFD."""
        piece = self._half + piece
        self._half = piece[-1] if '\ud800' <= piece[-1:] <= '\udbff' else ''
        piece = piece.removesuffix(self._half)
        if piece:
            self._has_text = self._has_text or not piece.isspace()
            yield TextPiece(storable(piece))

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any]) -> ToolCalled:
        """Returns a call that is complete. No arguments at all are an empty object.

        Args:
            call_id: The call's id as the model gave it.
            name: The tool.
            arguments: What it is given, as an object or as the text of one.

        Raises:
            InvalidAnswer: They are no JSON object.
        """
        self._has_calls = True
        return ToolCalled(storable(call_id), storable(name), _object(name, arguments))

    def used(self, total: Usage) -> Iterator[TurnEvent]:
        """Yields what was used since the last count.

        Args:
            total: What the answer has used so far, as far as it was said: a count never becomes less.
        """
        so_far = msgspec.structs.astuple(self._counted)
        now = [max(counts) for counts in zip(so_far, msgspec.structs.astuple(total), strict=True)]
        new = UsageCounted(*(after - before for before, after in zip(so_far, now, strict=True)))
        self._counted = Usage(*now)
        if new != UsageCounted():
            yield new

    def stopped(self, reason: str, model: str) -> Iterator[TurnEvent]:
        """Yields the end.

        Args:
            reason: Why the model stopped; see `Stopped`.
            model: Which model it was.

        Raises:
            TurnRefused: The model refused, without a word.
            BackendError: There is nothing in the answer.
        """
        half, self._half = self._half, ''
        if half:
            self._has_text = True
            yield TextPiece(storable(half))
        if self.is_empty and reason == 'refusal':
            raise TurnRefused('the model refused to answer', 'say it in other words')
        if self.is_empty and reason == 'max_tokens':
            raise BackendError('it reached its max_tokens before it said anything', 'raise max_tokens of the backend')
        if self.is_empty:
            raise BackendError(f'its answer is empty (stopped by {storable(reason)!r})')
        if self._has_calls and reason == 'end_turn':
            reason = 'tool_use'  # not every server says so
        yield Stopped(storable(reason), storable(model))


def _object(name: str, arguments: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    if not arguments.strip():
        return {}
    try:
        # Not msgspec's: what it cannot decode, half a character for one, is still an object.
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidAnswer(arguments, f'the arguments of its call of {storable(name)!r} are no JSON object')
    return value
