"""What a session gives back for a message: a whole response, or a stream of its text."""

import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from trading_agent.conversation.blocking import Puller, refuse_in_loop
from trading_agent.conversation.history import copy_of
from trading_agent.conversation.session_turn import SessionTurn
from trading_agent.errors import StreamNotConsumed
from trading_agent.messages import AssistantMessage, Message, Usage
from trading_agent.turn_events import TextPiece, TurnEvent


@dataclass(frozen=True)
class AgentResponse:
    """What came of a message.

    Attributes:
        text: The answer.
        message: The answer as it is in the history.
        messages: All that the turn added to the history: the user's message, tool calls and their results, the answer.
        usage: Tokens used by the whole turn.
        stop_reason: Why the model stopped, in the provider's word: `end_turn`, `max_tokens`, …
        model: Which model answered.
        parsed: What the answer says, where a schema was given; else None.
    """

    text: str
    message: AssistantMessage
    messages: list[Message]
    usage: Usage
    stop_reason: str | None = None
    model: str = ''
    parsed: Any = None


def response_of(turn: SessionTurn) -> AgentResponse:
    """Returns what came of a turn.

    Raises:
        StreamNotConsumed: It has not come to its end, or it has failed.
    """
    if not turn.is_kept:
        raise StreamNotConsumed('there is no response: the stream was not consumed to its end', 'iterate over it first')
    messages = [copy_of(message) for message in turn.messages]
    message = messages[-1]
    assert isinstance(message, AssistantMessage)  # noqa: S101 - with it, a turn ends
    return AgentResponse(
        text=message.text,
        message=message,
        messages=messages,
        usage=turn.usage,
        stop_reason=message.stop_reason,
        model=message.model,
        parsed=turn.parsed,
    )


class AsyncStreamResponse:
    """The pieces of an answer as they come, for `async for`.

    The message is sent when the first piece is asked for. Where tools are called, the text before and after the calls
    comes; `response.text` is the last answer alone. Who does not read to the end closes it: by `async with`, by
    `aclose()`, or by dropping it; the history is then as it was.

    Args:
        turn: The turn.
        events: What happens in it.
        drop: Is called when the response is forgotten before its end.
    """

    def __init__(
        self, turn: SessionTurn, events: AsyncGenerator[TurnEvent, None], drop: Callable[[SessionTurn], None]
    ) -> None:
        self._turn = turn
        self._events = events
        # The collector closes the generator too, but later; whoever dropped it may ask again at once.
        self._finalizer = weakref.finalize(self, drop, turn)
        self._finalizer.atexit = False

    @property
    def response(self) -> AgentResponse:
        """The whole response, once the stream has been consumed.

        Raises:
            StreamNotConsumed: It has not, or it failed.
        """
        return response_of(self._turn)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        async for event in self._events:
            if isinstance(event, TextPiece):
                return event.text
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the stream where it is."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class StreamResponse:
    """The pieces of an answer as they come, for `for`. See `AsyncStreamResponse`.

    Between two pieces nothing is read: a slow reader slows the model's stream down.

    Args:
        turn: The turn.
        events: What happens in it.
    """

    def __init__(self, turn: SessionTurn, events: AsyncGenerator[TurnEvent, None]) -> None:
        self._turn = turn
        self._puller = Puller(events)
        self._finalizer = weakref.finalize(self, self._puller.close)

    @property
    def response(self) -> AgentResponse:
        """The whole response, once the stream has been consumed.

        Raises:
            StreamNotConsumed: It has not, or it failed.
        """
        return response_of(self._turn)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        refuse_in_loop('this stream', 'async for piece in await session.stream_async(…)')
        while (event := self._puller.pull()) is not None:
            if isinstance(event, TextPiece):
                return event.text
        raise StopIteration

    def close(self) -> None:
        """Ends the stream where it is."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
