"""One turn of a session: a model is asked, the tools that it wants are run, and it is asked again until it answers."""

import copy
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, Protocol

import msgspec

from trading_agent.conversation.history import own_message
from trading_agent.conversation.schema import AnswerSchema
from trading_agent.conversation.tools import Tool, result_of
from trading_agent.errors import BackendError, InvalidAnswer, InvalidInput, TooManyRounds
from trading_agent.messages import AssistantMessage, Message, TextContent, ToolCall, Usage, UserMessage
from trading_agent.providers.provider import ModelRequest, Provider, Stopped
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnAnswered, TurnEvent, UsageCounted

_AGAIN = 'This cannot be used: {problem}. Answer again, with JSON alone that fulfils the schema.'


class Answering(Protocol):
    """What a turn needs to know of an agent."""

    @property
    def provider(self) -> Provider:
        """Who is asked."""
        ...

    @property
    def model(self) -> str:
        """Which model; empty for the provider's own choice."""
        ...

    @property
    def system(self) -> str | None:
        """What stands above the conversation, where a session has nothing of its own."""
        ...

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What the model may call."""
        ...

    @property
    def temperature(self) -> float | None:
        """How freely it answers, where a turn does not say."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The longest answer in tokens, where a turn does not say."""
        ...

    @property
    def max_rounds(self) -> int:
        """How often the model is asked in one turn."""
        ...


class SessionTurn:
    """One turn, while it runs and after.

    Args:
        agent: Who answers.
        text: What it is told.
        system: What stands above the conversation.
        schema: What the answer is to look like, or None for text.
        temperature: How freely it answers; None for the agent's own.
        max_tokens: The longest answer; None for the agent's own.
        metadata: What is passed on to the provider.

    Attributes:
        messages: What was said in it so far, oldest first.
        usage: Tokens used so far, by all requests to the model.
        parsed: What the answer says, where a schema was given.
        is_kept: Whether it has ended well, and its messages are part of the history.
    """

    def __init__(
        self,
        agent: Answering,
        text: str,
        *,
        system: str | None = None,
        schema: AnswerSchema | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._agent = agent
        self._system = system
        self._schema = schema
        self._temperature = agent.temperature if temperature is None else temperature
        self._max_tokens = agent.max_tokens if max_tokens is None else max_tokens
        self._metadata = dict(metadata or {})
        self._tried_again = False
        self.messages: list[Message] = [UserMessage(text, time.time())]
        self.usage = Usage()
        self.parsed: Any = None
        self.is_kept = False

    async def events(self, history: Sequence[Message]) -> AsyncGenerator[TurnEvent, None]:
        """Asks the model until it answers, and yields what happens: `TurnAnswered` last.

        The calls of one answer are run one after the other, and their results are told in the same order.

        Args:
            history: What was said before.

        Raises:
            BackendError: The stream was cut, or the model never answered (`TooManyRounds`), or its answer does not
                fulfil the schema, after one more try (`InvalidAnswer`).
            Exception: Whatever the provider raises.
        """
        message = AssistantMessage()
        for _ in range(self._agent.max_rounds):
            answer = _Answer()
            async with _closing(self._agent.provider.stream(self._request(history))) as stream:
                async for event in stream:
                    answer.take(event)
                    if isinstance(event, TextPiece):
                        yield event
                    elif isinstance(event, UsageCounted):
                        self.usage += _usage_of(event)
                        yield event
            message = answer.message()
            self.messages.append(message)
            for call in message.calls:
                yield ToolCalled(call.id, call.name, copy.deepcopy(call.arguments))
            for call in message.calls:
                result = await result_of(call, self._agent.tools)
                self.messages.append(result)
                yield ToolReturned(result.tool_call_id, result.content, result.is_error)
            if not message.calls and self._is_as_asked(message.text):
                break
        else:
            raise TooManyRounds(f'no answer after {self._agent.max_rounds} requests to the model')
        yield TurnAnswered(message.text, model=message.model, stop_reason=message.stop_reason)

    def _request(self, history: Sequence[Message]) -> ModelRequest:
        return ModelRequest(
            model=self._agent.model,
            messages=[*history, *self.messages],
            system=self._system,
            tools=[tool.spec for tool in self._agent.tools.values()],
            schema=self._schema.json_schema if self._schema else None,
            temperature=self._temperature,
            max_tokens=self._max_tokens,
            metadata=self._metadata,
        )

    def _is_as_asked(self, text: str) -> bool:
        """Reads the answer by the schema; says False once, when the model is told what is wrong and asked again."""
        if self._schema is None:
            return True
        try:
            self.parsed = self._schema.read(text)
        except InvalidAnswer as error:
            if self._tried_again:
                raise
            self._tried_again = True
            self.messages.append(UserMessage(_AGAIN.format(problem=error.problem), time.time()))
            return False
        return True


class _Answer:
    """One answer of a model, while it comes."""

    def __init__(self) -> None:
        self._parts: list[TextContent | ToolCall] = []
        self._text: list[str] = []
        self._ids: set[str] = set()
        self._usage: Usage | None = None
        self._stopped: Stopped | None = None

    def take(self, event: TurnEvent) -> None:
        if isinstance(event, TextPiece):
            self._text.append(event.text)
        elif isinstance(event, ToolCalled):
            self._end_text()
            call_id = event.id if event.id and event.id not in self._ids else f'call-{uuid.uuid4().hex}'
            self._ids.add(call_id)
            self._parts.append(ToolCall(call_id, event.name, event.arguments))
        elif isinstance(event, UsageCounted):
            self._usage = (self._usage or Usage()) + _usage_of(event)
        elif isinstance(event, Stopped):
            self._stopped = event

    def message(self) -> AssistantMessage:
        """Returns the whole answer.

        Raises:
            BackendError: It has no end, or cannot be kept.
        """
        if self._stopped is None:
            raise BackendError('the stream was cut: the model did not say that it had finished', 'ask again')
        self._end_text()
        calls = [part for part in self._parts if isinstance(part, ToolCall)]
        in_order = self._parts[len(self._parts) - len(calls) :] == calls  # text, and then calls
        text = ''.join(part.text for part in self._parts if isinstance(part, TextContent))
        message = AssistantMessage(
            content=text if in_order else self._parts,
            tool_calls=calls,
            model=self._stopped.model,
            usage=self._usage,
            stop_reason=self._stopped.reason,
            timestamp=time.time(),
        )
        try:
            return own_message(message)
        except InvalidInput as error:
            raise BackendError(f'its answer cannot be kept: {error}') from error

    def _end_text(self) -> None:
        if self._text:
            self._parts.append(TextContent(''.join(self._text)))
            self._text = []


def _usage_of(event: UsageCounted) -> Usage:
    return Usage(*(count or 0 for count in msgspec.structs.astuple(event)))


def _closing(stream: AsyncIterator[TurnEvent]) -> AbstractAsyncContextManager[AsyncIterator[TurnEvent]]:
    """Closes a provider's generator at once when the turn ends, and not when the collector comes by."""
    return aclosing(stream) if isinstance(stream, AsyncGenerator) else nullcontext(stream)
