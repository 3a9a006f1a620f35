"""What goes wrong in drills of alerts: backends and components that a configuration names, as other people's code."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

from trading_agent.errors import BackendError, TurnRefused
from trading_agent.event_bus import EventBus
from trading_agent.routing.turn_runner import Turn, TurnAnswered, TurnEvent


class Refusing:
    """Refuses every request, so that no backend could answer it."""

    async def run(self, _: Turn) -> AsyncIterator[TurnEvent]:
        raise TurnRefused('the request was refused', 'ask for something else')
        yield


class NoReviews:
    """Answers turns, and fails at the end-of-day review."""

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        if turn.schema is not None:
            raise BackendError('no reviews today')
        yield TurnAnswered('noted')


class Verbose:
    """Answers with 200,000 characters."""

    async def run(self, _: Turn) -> AsyncIterator[TurnEvent]:
        yield TurnAnswered('word ' * 40_000)


class Waiting:
    """Answers once a file is there.

    Args:
        file: The file.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    async def run(self, _: Turn) -> AsyncIterator[TurnEvent]:
        while not self._file.exists():  # noqa: ASYNC110 - a test makes it
            await anyio.sleep(0.05)
        yield TurnAnswered('at last')


def refusing(_: str, __: dict[str, Any]) -> Refusing:
    """Makes a backend of this kind."""
    return Refusing()


def no_reviews(_: str, __: dict[str, Any]) -> NoReviews:
    """Makes a backend of this kind."""
    return NoReviews()


def verbose(_: str, __: dict[str, Any]) -> Verbose:
    """Makes a backend of this kind."""
    return Verbose()


def waiting(_: str, options: dict[str, Any]) -> Waiting:
    """Makes a backend of this kind."""
    return Waiting(**options)


async def blocking(_: EventBus, __: dict[str, Any]) -> None:
    """A component that holds up the event loop for two seconds."""
    time.sleep(2.0)  # noqa: ASYNC251 - the fault that is tried


async def failing(_: EventBus, __: dict[str, Any]) -> None:
    """A component that fails as soon as it is started."""
    raise RuntimeError('a fault of the component')
