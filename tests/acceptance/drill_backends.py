"""Backends for drills that the built-in one does not know; they are plug-ins, and their options are live objects."""

from collections.abc import AsyncIterator
from typing import Any

import anyio

from trading_agent.routing.turn_runner import Turn, TurnAnswered, TurnEvent


class Counting:
    """Answers, and notes each text that it was asked.

    Args:
        asked: Where it notes them.
    """

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        self._asked.append(turn.text)
        yield TurnAnswered(f'answer {len(self._asked)}')


class Stubborn:
    """Does not let itself be cut off until it is let go.

    Args:
        let_go: Ends it when it is set.
    """

    def __init__(self, let_go: anyio.Event) -> None:
        self._let_go = let_go

    async def run(self, _: Turn) -> AsyncIterator[TurnEvent]:
        while not self._let_go.is_set():
            try:
                await anyio.sleep(0.01)
            except anyio.get_cancelled_exc_class():  # the fault that is tried: it is swallowed
                continue
        yield TurnAnswered('too late')


def counting(_: str, options: dict[str, Any]) -> Counting:
    """Makes a backend of this kind."""
    return Counting(**options)


def stubborn(_: str, options: dict[str, Any]) -> Stubborn:
    """Makes a backend of this kind."""
    return Stubborn(**options)
