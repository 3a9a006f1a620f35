"""The built-in `offline` provider: no key, no network, no model, and it says so. Also for drills and tests."""

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime

import anyio
import anyio.lowlevel
import anyio.to_thread

from trading_agent.clock import trading_date
from trading_agent.errors import BackendError, TurnRefused
from trading_agent.messages import Message, UserMessage
from trading_agent.providers.heard import Hearing
from trading_agent.providers.offline_answer import answer, pieces
from trading_agent.providers.offline_fields import filled
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.settings import OfflineOptions
from trading_agent.trigger import storable
from trading_agent.turn_events import TextPiece, TurnEvent

MODEL = 'offline'


class OfflineProvider:
    """Answers from the conversation itself and from what stands above it; the same request gets the same answer.

    It calls no tools and counts no tokens.

    Args:
        options: How long it takes, and which requests fail or hang. All requests to this provider are counted; one
            that is to fail and to hang fails.
        name: Its name in the configuration, for what a drill says.
    """

    def __init__(self, options: OfflineOptions | None = None, name: str = MODEL) -> None:
        self._options = options or OfflineOptions()
        self._name = name
        self._calls = 0
        self._hearing = Hearing()

    async def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        """Answers the last user's message: in pieces, or by a schema in one piece of JSON.

        `system` is what the desk remembers: the text of its Memory.md. `metadata['trading_date']`, as `2026-10-19`,
        is the day that a `memory` asked for by a schema is folded under; without it, it is the India date of the
        newest message.

        Raises:
            BackendError: `fail_every` asked for it.
            TurnRefused: There is no user's message.
        """
        self._calls += 1
        call = self._calls
        await anyio.sleep(self._options.delay)
        await self._drill(call)
        text, before = _asked(request.messages)
        memory, heard = request.system or '', self._hearing.pairs_of(before)
        if request.schema is not None:
            # A whole day is read: in a thread, so that others go on.
            values = await anyio.to_thread.run_sync(filled, request.schema, heard, memory, _day(request))
            yield TextPiece(storable(json.dumps(values, ensure_ascii=False)))
        else:
            for number, piece in enumerate(pieces(storable(answer(text, heard, memory)))):
                if number and self._options.chunk_delay:
                    await anyio.sleep(self._options.chunk_delay)
                else:
                    await anyio.lowlevel.checkpoint()
                yield TextPiece(piece)
        yield Stopped('end_turn', MODEL)

    async def _drill(self, call: int) -> None:
        if self._options.fail_every and call % self._options.fail_every == 0:
            raise BackendError(
                f'the offline backend {self._name!r} failed call {call}, as it was told to',
                f'a drill: take fail_every = {self._options.fail_every} out of [backends.{self._name}] to end it',
            )
        if self._options.hang_every and call % self._options.hang_every == 0:
            await anyio.sleep_forever()


def _asked(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Returns the last user's text, and the messages before it."""
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, UserMessage):
            return message.content, messages[:at]
    raise TurnRefused('there is no message of a user to answer')


def _day(request: ModelRequest) -> date:
    given = request.metadata.get('trading_date')
    try:
        return date.fromisoformat(str(given))
    except ValueError:
        newest = max((message.timestamp for message in request.messages), default=0.0)
    try:
        return trading_date(datetime.fromtimestamp(newest, UTC) if newest else datetime.now(UTC))
    except (ValueError, OverflowError, OSError):
        return trading_date(datetime.now(UTC))
