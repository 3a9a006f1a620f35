"""Runs the turns of a desk on a stateless model API: each in a `Session` made of the desk's exchanges."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import anyio.to_thread

from trading_agent.clock import instant_in
from trading_agent.conversation.agent import Agent
from trading_agent.conversation.history import History
from trading_agent.conversation.schema import AnswerSchema
from trading_agent.conversation.session import Session
from trading_agent.conversation.tools import Tool
from trading_agent.errors import BackendBusy, BackendDown, BackendError, ContextTooSmall, TurnRefused
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.rollover import clipped
from trading_agent.messages import AssistantMessage, Message, UserMessage
from trading_agent.providers.provider import Provider
from trading_agent.routing import context
from trading_agent.routing.turn_runner import DigestMade, TextPiece, Turn, TurnAnswered, TurnEvent, UsageCounted
from trading_agent.routing.turn_text import system_prompt, timed
from trading_agent.trigger import storable

ANSWER_TOKENS = 8000
"""How much room an answer is left in the context, where nothing else is configured."""

_DIGEST_TRIES = 2
"""How often a digest is asked for in a row of a model that is busy, down or too slow, before it is made by rule."""


@dataclass(frozen=True)
class ModelSettings:
    """How a desk uses a real model.

    Attributes:
        context_tokens: How many tokens the model takes.
        max_tokens: The longest answer, in tokens; None for the provider's own choice.
        temperature: How freely it answers; None for the provider's own choice.
    """

    context_tokens: int = 128_000
    max_tokens: int | None = None
    temperature: float | None = None


class ProviderRunner:
    """A turn runner over a provider. What the model sees of a session are the session's exchanges.

    What those exchanges are as messages is remembered from turn to turn, for a session grows and its beginning stays
    what it was. Where they no longer fit into the model's context, the oldest are folded into a digest, which
    `runner_state` keeps.

    Args:
        provider: Who is asked.
        model: The provider's name of the model; empty for its own choice.
        settings: How a real model is used. None for the built-in `offline` one, which sees Memory.md and the
            exchanges as they are, and calls no tools.
    """

    def __init__(self, provider: Provider, model: str = '', settings: ModelSettings | None = None) -> None:
        self._settings = settings
        self._provider = provider
        self._model = model
        self._exchanges: list[Exchange] = []
        self._messages: list[Message] = []
        self._sizes: list[int] = []
        self._unanswered = ('', '', _Folded())
        self._digest_failures = 0

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        """Runs one turn and yields its events; of a question beside the session no pieces of text.

        An answer that does not fulfil a question's schema is asked for once more. Texts that are too long, and fields
        that the schema does not know, are let pass: whoever asked cuts them.

        Raises:
            BackendError: The provider could not answer, or there is nothing usable in its answer.
            Exception: Whatever else the provider raises.
        """
        tools = list(turn.tools) if self._settings is not None else []
        self._take(turn)
        folded = _Folded.of(turn)
        if self._settings is not None:
            async for event in self._fold(turn, folded, tools):
                yield event
        begun = False
        while True:
            try:
                async with aclosing(self._answer(turn, folded, tools)) as events:
                    async for event in events:
                        begun = begun or not isinstance(event, UsageCounted)
                        yield _with_state(event, folded.state(turn))
            except ContextTooSmall:
                # The estimate was wrong: half of what was sent is folded. What was said or done is not done again.
                left = len(turn.exchanges) - folded.count
                if begun or self._settings is None or not left:
                    raise
                async for event in self._fold(turn, folded, tools, at_least=(left + 1) // 2):
                    yield event
            else:
                return

    async def _answer(self, turn: Turn, folded: '_Folded', tools: list[Tool]) -> AsyncGenerator[TurnEvent, None]:
        schema = None
        if turn.schema:
            # In a thread, for what checks a dictionary may have to be imported.
            schema = await anyio.to_thread.run_sync(partial(AnswerSchema.of, turn.schema, lenient=True))
        settings = self._settings or ModelSettings()
        agent = Agent(
            self._provider,
            self._model,
            tools=tools,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
        )
        history = History.of_whole(self._messages[2 * folded.count :])
        session = Session(agent, turn.session_id, self._system(turn, folded.digest), history)
        metadata = {
            'desk': turn.desk,
            'session_id': turn.session_id,
            'trading_date': turn.trading_date.isoformat(),
        }
        async with aclosing(session.events(self._told(turn), schema=schema, metadata=metadata)) as events:
            async for event in events:
                if isinstance(event, TurnAnswered) and not event.answer.strip():
                    raise BackendError('its answer is blank')
                if turn.schema is None or not isinstance(event, TextPiece):
                    yield event
                elif self._settings is not None:
                    yield _untold(event)

    def _told(self, turn: Turn) -> str:
        return turn.text if self._settings is None else timed(turn.text, turn.started_at, turn.trading_date)

    def _system(self, turn: Turn, digest: str) -> str | None:
        if self._settings is None:
            return turn.memory or None
        return system_prompt(
            turn.desk, instructions=turn.instructions, memory=turn.memory, skills=turn.skills, digest=digest
        )

    async def _fold(
        self, turn: Turn, folded: '_Folded', tools: Sequence[Tool], at_least: int = 0
    ) -> AsyncIterator[TurnEvent]:
        """Folds the oldest exchanges into the digest where the session no longer fits, and tells it."""
        assert self._settings is not None  # noqa: S101 - a real model
        limit = self._settings.context_tokens
        needed = context.needed_fold(self._sizes[folded.count :], self._fixed(turn, folded, tools), limit)
        count = folded.count + max(needed, at_least)
        if count == folded.count:
            return
        asked_before, digested_before = self._unanswered[:2], self._unanswered[2]
        if asked_before == (turn.session_id, turn.trigger_id) and folded.count < digested_before.count <= count:
            folded.digest, folded.count = digested_before.digest, digested_before.count
        by_model = True
        for batch in context.batches(turn.exchanges[folded.count : count], limit // 2):
            made = _Digest(folded.digest)
            async with aclosing(self._digest(made, batch)) as events:
                async for event in events:
                    yield event
            folded.digest, folded.count = made.text, folded.count + len(batch)
            by_model = by_model and made.by_model
            if by_model and turn.trigger_id:
                self._unanswered = turn.session_id, turn.trigger_id, replace(folded)
        yield DigestMade(storable(folded.digest), folded.count, by_model)

    def _fixed(self, turn: Turn, folded: '_Folded', tools: Sequence[Tool]) -> int:
        """Returns how many tokens are sent beside the exchanges, with the room for an answer."""
        assert self._settings is not None  # noqa: S101 - a real model
        texts = [self._system(turn, folded.digest) or '', self._told(turn)]
        texts += [f'{tool.name}{tool.description}{tool.parameters}' for tool in tools]
        texts += [str(turn.schema)] * 2 if turn.schema else []  # told in words too
        answer = self._settings.max_tokens or min(ANSWER_TOKENS, self._settings.context_tokens // 4)
        return sum(map(context.tokens_in, texts)) + answer

    async def _digest(self, made: '_Digest', exchanges: Sequence[Exchange]) -> AsyncGenerator[TurnEvent, None]:
        """Folds exchanges into a digest, by the model or else by rule; yields what it costs, and that it goes on."""
        assert self._settings is not None  # noqa: S101 - a real model
        limit = self._settings.context_tokens
        characters = context.digest_characters(limit)
        request = context.fold_request(made.text, exchanges, limit // 2, characters)
        session = Session(Agent(self._provider, self._model, max_tokens=int(characters / context.CHARACTERS_PER_TOKEN)))
        text = ''
        self._digest_failures += 1  # it may be cut off, too
        if self._digest_failures <= _DIGEST_TRIES:
            try:
                async with aclosing(session.events(request)) as events:
                    async for event in events:
                        if isinstance(event, TurnAnswered):
                            text = event.answer.strip()
                        else:
                            yield _untold(event)
            except (BackendBusy, BackendDown):
                if self._digest_failures < _DIGEST_TRIES:
                    raise  # what is asked again later is digested better
            except (BackendError, TurnRefused):
                text = ''
        self._digest_failures = 0
        made.by_model = bool(text)
        if text:
            made.text = clipped(text, characters)
        else:
            made.text = await anyio.to_thread.run_sync(context.digest_without_model, made.text, exchanges, characters)

    def _take(self, turn: Turn) -> None:
        """Makes messages of the exchanges that are new."""
        known = len(self._exchanges)
        if list(turn.exchanges[:known]) != self._exchanges:  # another session, or a question about one
            self._exchanges, self._messages, self._sizes, known = [], [], [], 0
        for exchange in turn.exchanges[known:]:
            finished_at = _instant(exchange.finished_at)
            started_at = _instant(exchange.started_at) or finished_at
            text = exchange.trigger_text
            if self._settings is not None:
                text = timed(text, started_at, turn.trading_date)
                self._sizes.append(context.tokens_in(text) + context.tokens_in(exchange.answer))
            self._messages.append(UserMessage(text, _timestamp(started_at)))
            self._messages.append(AssistantMessage(exchange.answer, timestamp=_timestamp(finished_at)))
            self._exchanges.append(exchange)


@dataclass
class _Digest:
    """A digest that is being made."""

    text: str
    by_model: bool = True


@dataclass
class _Folded:
    """What of a session is told in short."""

    digest: str = ''
    count: int = 0

    @classmethod
    def of(cls, turn: Turn) -> '_Folded':
        state: dict[str, Any] = turn.runner_state or {}
        digest, count = state.get('digest'), state.get('folded')
        if isinstance(digest, str) and isinstance(count, int) and 0 <= count <= len(turn.exchanges):
            return cls(digest, count)
        return cls()

    def state(self, turn: Turn) -> dict[str, Any] | None:
        """Returns what is to be remembered."""
        return {'digest': self.digest, 'folded': self.count} if self.count and turn.schema is None else None


def _untold(event: TurnEvent) -> TurnEvent:
    """Returns an event of which nobody is told what was said, but that something was: a silent backend is given up."""
    return UsageCounted() if isinstance(event, TextPiece) else event


def _with_state(event: TurnEvent, state: dict[str, Any] | None) -> TurnEvent:
    """Returns an event; the answer with what is to be remembered."""
    if not isinstance(event, TurnAnswered):
        return event
    return TurnAnswered(event.answer, state, event.model, event.stop_reason)


def _instant(text: str | None) -> datetime | None:
    """Returns an ISO 8601 string as an instant, one without a zone taken for UTC; None for what is none."""
    return instant_in(text or '') or instant_in(f'{text}Z')


def _timestamp(instant: datetime | None) -> float:
    return instant.timestamp() if instant else 0.0
