"""One call of one backend: what its runner yields is told as it comes, and its answer is checked."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from trading_agent.conversation.schema import AnswerSchema
from trading_agent.errors import BackendError, InvalidAnswer
from trading_agent.messages import Usage
from trading_agent.routing.turn_runner import (
    TextPiece,
    ToolCalled,
    ToolReturned,
    Turn,
    TurnAnswered,
    TurnEvent,
    TurnRunner,
)

LONGEST_ANSWER = 4 << 20
"""The longest answer, and the most that a tool is given or gives back, in characters: its line must be read again."""

CLOSE_SECONDS = 10.0
"""How long a runner may take to clean up when it is cut off or has failed."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a backend answered.

    Attributes:
        text: The answer.
        backend: Who answered.
        data: The answer's fields, where a schema was given; else empty.
        runner_state: What the runner wants back with the next turn.
        model: The model that answered, where the runner said it.
        stop_reason: Why it stopped, where the runner said it.
    """

    text: str
    backend: str
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    runner_state: dict[str, Any] | None = None
    model: str = ''
    stop_reason: str | None = None


@dataclasses.dataclass
class Call:
    """The model call that is being made.

    Attributes:
        purpose: `turn` or `review`.
        trigger_id: The trigger, for a turn; the first one where several were gathered.
        turn_id: The trigger and the attempt, for a turn.
        backend: Who is being asked, or None while the call waits for its slot.
        ends_by: The latest event-loop time at which it should be over, or None while it waits for its slot.
        usage: Tokens that this backend has used for it so far.
        trigger_ids: All triggers that were gathered into the turn, in order; empty where it is one.
    """

    purpose: str
    trigger_id: str | None = None
    turn_id: str = ''
    backend: str | None = None
    ends_by: float | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    trigger_ids: tuple[str, ...] = ()


async def reply_of(
    name: str, runner: TurnRunner, turn: Turn, on_event: Callable[[TurnEvent], Awaitable[None]]
) -> Reply:
    """Runs a turn on a backend and returns its answer.

    Args:
        name: The backend's name.
        runner: Its runner.
        turn: What it is to answer.
        on_event: Is given each event as it comes, but not the last one.

    Raises:
        BackendError: It ended without an answer, or with one that cannot be used.
        TurnRefused: It refused the request itself.
        Exception: Whatever else the runner raises.
    """
    answered: TurnAnswered | None = None
    said = 0
    try:
        async with _closing(runner.run(turn)) as events:
            async for event in events:
                said += len(event.text) if isinstance(event, TextPiece) else 0
                if max(said, _size_of_tool_use(event)) > LONGEST_ANSWER:
                    raise _too_long()
                if isinstance(event, TurnAnswered):
                    answered = event
                else:
                    await on_event(event)
    except anyio.get_cancelled_exc_class() as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancels this desk: a task inside the runner was cancelled, and its failure is the runner's.
        raise BackendError('something inside it was cancelled') from error
    if answered is None:
        raise BackendError('it ended without an answer')
    _check(answered)
    data = fields_of(answered.answer, turn.schema) if turn.schema else {}
    return Reply(answered.answer, name, data, answered.runner_state, answered.model, answered.stop_reason)


@asynccontextmanager
async def _closing(stream: AsyncIterator[TurnEvent]) -> AsyncIterator[AsyncIterator[TurnEvent]]:
    """Closes a runner's generator at once when the turn is cut off, and not when the collector comes by."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await stream.aclose()


def _check(answered: TurnAnswered) -> None:
    """Keeps what could not be stored, and read again, out of the session's files.

    Raises:
        BackendError: A plug-in broke its contract.
    """
    answer: object = answered.answer
    if not isinstance(answer, str):
        raise BackendError(f'its answer is no text: {type(answer).__name__}')
    if len(answer) > LONGEST_ANSWER:
        raise _too_long()
    state: object = answered.runner_state
    try:
        if state is not None and not isinstance(state, dict):
            raise TypeError(f'it is no dictionary: {type(state).__name__}')
        size = len(json.dumps(state))
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendError(f'its runner_state cannot be stored as JSON: {error}') from error
    if size > LONGEST_ANSWER:
        raise BackendError(f'its runner_state has {size:,} characters, and may have {LONGEST_ANSWER:,}')


def _size_of_tool_use(event: TurnEvent) -> int:
    """Returns how many characters a tool is given or gives back; 0 for what is neither."""
    if isinstance(event, ToolCalled):
        return len(json.dumps(event.arguments, default=str))
    return len(event.content) if isinstance(event, ToolReturned) else 0


def _too_long() -> BackendError:
    what = f'its answer, or what a tool gave it, has more than {LONGEST_ANSWER:,} characters'
    return BackendError(what, 'look at what the model is told')


def fields_of(answer: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Reads an answer that was to be an object of a schema.

    A text that is too long, and a field that the schema does not know, are let pass: whoever asked cuts them.

    Raises:
        InvalidAnswer: It is none, does not fulfil the schema, or is blank where the schema asks for a text.
        InvalidInput: The schema is none.
    """
    data = AnswerSchema.of(schema, lenient=True).read(answer)
    if not isinstance(data, dict):
        raise InvalidAnswer(answer, f'the answer is no JSON object: {answer[:200]}')
    for name, part in schema.get('properties', {}).items():
        text = data.get(name)
        if isinstance(text, str) and isinstance(part, dict) and part.get('minLength') and not text.strip():
            raise InvalidAnswer(answer, f'the answer has no text for {name}')
    return data
