"""A conversation with a model, message by message, that remembers what was said."""

import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Self

import anyio.to_thread

from trading_agent.clock import utc_text
from trading_agent.conversation import blocking
from trading_agent.conversation.history import History
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.responses import AgentResponse, AsyncStreamResponse, StreamResponse, response_of
from trading_agent.conversation.schema import AnswerSchema
from trading_agent.conversation.session_data import USAGE_KEYS, SessionData, counts_in, from_data, to_data
from trading_agent.conversation.session_turn import Answering, SessionTurn
from trading_agent.conversation.turns import Turns
from trading_agent.errors import InvalidInput
from trading_agent.messages import Message
from trading_agent.trigger import storable
from trading_agent.turn_events import TurnEvent


class Session:
    """A conversation of several turns.

    The history changes only when a turn has ended well: then all that was said in it is added at once. A turn that
    fails, is cancelled or whose stream is dropped leaves it as it was; its tokens are counted all the same. One turn
    runs at a time, and while one does, `clear` and `add_message` are refused too. What is handed out is a copy.

    A session is for one thread at a time. Each call that blocks has an event loop of its own: in code that has one,
    await the method of the same name that ends in `_async`.

    Args:
        agent: Who answers.
        session_id: Its id, any text; None for a new unique one.
        system: What stands above the conversation; None for the agent's own.
        messages: What was said before, each tool call with its result; copied. A `History` is taken over as it is.
        journal: Where each event of a turn is written before it is told; None for nowhere.

    Raises:
        InvalidInput: One of these is not what it should be.
    """

    def __init__(
        self,
        agent: Answering,
        session_id: str | None = None,
        system: str | None = None,
        messages: Iterable[Message] | History | None = None,
        *,
        journal: Journal | None = None,
    ) -> None:
        self._agent = agent
        self._session_id = str(uuid.uuid4()) if session_id is None else _text(session_id, "a session's id")
        self._system = None if system is None else _text(system, 'what stands above a session')
        self._history = messages if isinstance(messages, History) else History(messages or ())
        self._turns = Turns(self._history, journal, self._count)
        self._created_at = utc_text(datetime.now(UTC))
        self._token_usage = dict.fromkeys(USAGE_KEYS, 0)

    def __repr__(self) -> str:
        return f'<Session {self._session_id!r} of {len(self._history.messages)} messages>'

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._session_id

    @property
    def system(self) -> str | None:
        """What stands above the conversation: the session's own, else the agent's."""
        return self._agent.system if self._system is None else self._system

    @property
    def messages(self) -> list[Message]:
        """The history, oldest first; a copy."""
        return self._history.copies()

    @property
    def created_at(self) -> str:
        """When the session was created, as an ISO 8601 string in UTC."""
        return self._created_at

    @property
    def token_usage(self) -> dict[str, int]:
        """Tokens used so far: `prompt_tokens`, `completion_tokens` and `total_tokens`; a copy.

        What a cache had, or was given, is part of the prompt.
        """
        return dict(self._token_usage)

    def run(
        self,
        input: str,  # noqa: A002 - the documented name
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AgentResponse:
        """Sends a message and returns the response; both become part of the history.

        Args:
            input: The user's message. It is not blank.
            temperature: How freely the model answers; None for the agent's default.
            max_tokens: The longest answer, in tokens; None for the agent's default.
            metadata: What is passed on to the provider beside the conversation.

        Raises:
            LoopIsRunning: An event loop runs in this thread: await `run_async`.
            InvalidInput: The message is blank, or a tool call of the history has no result yet.
            SessionBusy: A turn of this session runs.
            BackendError: The provider could not answer, or what it answered was cut.
            Exception: Whatever else the provider raises.
        """
        blocking.refuse_in_loop('run()', 'await session.run_async(…)')
        turn = self._turn(input, None, temperature, max_tokens, metadata)
        return blocking.run(lambda: self._response(turn))

    async def run_async(
        self,
        input: str,  # noqa: A002 - the documented name
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AgentResponse:
        """Sends a message and returns the response; see `run`."""
        return await self._response(self._turn(input, None, temperature, max_tokens, metadata))

    def stream(
        self,
        input: str,  # noqa: A002 - the documented name
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> StreamResponse:
        """Sends a message and streams the response. The history is updated once the stream is consumed.

        The message is sent when the first piece is asked for. For the arguments and the errors, which may come with
        any piece, see `run`; inside an event loop await `stream_async`.
        """
        blocking.refuse_in_loop('stream()', 'await session.stream_async(…)')
        turn = self._turn(input, None, temperature, max_tokens, metadata)
        return StreamResponse(turn, self._turns.events(turn))

    async def stream_async(
        self,
        input: str,  # noqa: A002 - the documented name
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AsyncStreamResponse:
        """Sends a message and streams the response; see `stream`."""
        turn = self._turn(input, None, temperature, max_tokens, metadata)
        return AsyncStreamResponse(turn, self._turns.events(turn), self._turns.leave)

    def json(
        self,
        input: str,  # noqa: A002 - the documented name
        *,
        schema: Any,  # noqa: ANN401 - whatever describes a type
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AgentResponse:
        """Sends a message and returns a response whose `parsed` is what the answer says.

        An answer that does not fulfil the schema is told to the model, which may try once more. If that one does, the
        history holds both, and what the model was told in between.

        Args:
            input: The user's message. It is not blank.
            schema: A msgspec Struct, a dataclass or any type that msgspec can decode; a pydantic model; or a JSON
                Schema as a dictionary, in which every `$ref` leads to what stands within it.
            temperature: How freely the model answers; None for the agent's default.
            max_tokens: The longest answer, in tokens; None for the agent's default.
            metadata: What is passed on to the provider beside the conversation.

        Raises:
            InvalidAnswer: The second answer does not fulfil the schema either; the history is as it was.
            InvalidInput: The schema is none, or as of `run`.
            Exception: As of `run`.
        """
        blocking.refuse_in_loop('json()', 'await session.json_async(…)')
        turn = self._turn(input, AnswerSchema.of(schema), temperature, max_tokens, metadata)
        return blocking.run(lambda: self._response(turn))

    async def json_async(
        self,
        input: str,  # noqa: A002 - the documented name
        *,
        schema: Any,  # noqa: ANN401 - whatever describes a type
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AgentResponse:
        """Sends a message and returns a response whose `parsed` is what the answer says; see `json`."""
        # In a thread, for what checks a dictionary may have to be imported.
        answer_schema = await anyio.to_thread.run_sync(AnswerSchema.of, schema)
        return await self._response(self._turn(input, answer_schema, temperature, max_tokens, metadata))

    def events(
        self,
        input: str,  # noqa: A002 - as of the others
        *,
        schema: AnswerSchema | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AsyncGenerator[TurnEvent, None]:
        """Sends a message and yields whatever happens, `TurnAnswered` last. Everything else here is made of this.

        For the arguments and the errors see `run` and `json`. Close the generator where you leave it early.
        """
        return self._turns.events(self._turn(input, schema, temperature, max_tokens, metadata))

    def history(self) -> list[Message]:
        """Returns the whole history, oldest first; a copy."""
        return self._history.copies()

    def clear(self) -> None:
        """Forgets the history.

        Raises:
            SessionBusy: A turn runs.
        """
        self._turns.require_rest()
        self._history.clear()

    def fork(self, session_id: str | None = None) -> 'Session':
        """Returns a new session with a copy of the history, independent of this one.

        It has the same agent and system, has used no tokens yet, and is not journaled.

        Args:
            session_id: Its id; None for a new unique one.

        Raises:
            InvalidInput: A tool call that was added has no result yet.
        """
        self._history.require_whole()
        return Session(self._agent, session_id, self._system, self._history.messages)

    def add_message(self, message: Message) -> None:
        """Adds a message to the history by hand.

        An answer that asks for tools is kept aside until the result of each call was added, and only results can be
        until then: a history never holds a call without its result.

        Raises:
            InvalidInput: It is no message, or cannot come next.
            SessionBusy: A turn runs.
        """
        self._turns.require_rest()
        self._history.add(message)

    def update_usage(self, usage: Mapping[str, int | None]) -> None:
        """Adds to the count of tokens what other requests have used.

        Args:
            usage: `prompt_tokens`, `completion_tokens` and `total_tokens`; a missing or null one is zero.

        Raises:
            InvalidInput: One of them is no whole number from 0 on. Nothing was added.
        """
        self._count(counts_in(usage))

    def to_dict(self) -> dict[str, Any]:
        """Returns the session as a dictionary that JSON can hold, and that `from_dict` makes the same session of.

        Raises:
            InvalidInput: A tool call that was added has no result yet.
        """
        self._history.require_whole()
        data = SessionData(self._session_id, self._system, self._created_at, self._token_usage, self._history)
        return to_data(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any], agent: Answering) -> Self:
        """Makes a session of what `to_dict` returned.

        A system of the agent's own is not part of it: the session has that of its new agent.

        Args:
            data: The dictionary. Only `messages` is needed.
            agent: Who answers.

        Raises:
            InvalidInput: It is none, says what cannot be, or a newer version of the program wrote it.
        """
        read = from_data(data)
        session = cls(agent, read.session_id, read.system, read.history)
        session._created_at = read.created_at or session._created_at
        session._count(read.token_usage)
        return session

    def _turn(
        self,
        text: str,
        schema: AnswerSchema | None,
        temperature: float | None,
        max_tokens: int | None,
        metadata: dict[str, Any] | None,
    ) -> SessionTurn:
        said = _text(text, 'a message')
        if not said.strip():
            raise InvalidInput('the message is blank', 'say what the model is to know or to do')
        self._turns.require_rest()
        return SessionTurn(
            self._agent,
            said,
            system=self.system,
            schema=schema,
            temperature=temperature,
            max_tokens=max_tokens,
            metadata=metadata,
        )

    async def _response(self, turn: SessionTurn) -> AgentResponse:
        async with aclosing(self._turns.events(turn)) as events:
            async for _ in events:
                pass
        return response_of(turn)

    def _count(self, counts: Mapping[str, int]) -> None:
        for key, count in counts.items():
            self._token_usage[key] += count


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f'{what} is text, not {value!r:.200}')
    return storable(value)
