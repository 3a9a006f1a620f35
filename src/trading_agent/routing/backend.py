"""One of a desk's backends: who answers, how it is, and what is asked of it."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trading_agent.events import Event
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.routing.turn_runner import TurnRunner


@dataclass(frozen=True)
class CallLimits:
    """What a backend may take.

    Attributes:
        first_token_seconds: How long until something comes; the whole turn has a limit of its own.
        between_tokens_seconds: How long nothing more may come, but while a tool runs.
        daily_tokens: How many tokens a desk may use of it on a trading day; 0 for any number.
        review_chars: How much of a day it may be asked to review at once, in characters.
    """

    first_token_seconds: float = math.inf
    between_tokens_seconds: float = math.inf
    daily_tokens: int = 0
    review_chars: int = sys.maxsize


@dataclass(frozen=True)
class Backend:
    """A backend as one desk uses it.

    Attributes:
        name: Its configured name.
        runner: The desk's own runner of it.
        health: How it is, shared between the desks that use it.
        limits: What it may take.
    """

    name: str
    runner: TurnRunner
    health: BackendHealth
    limits: CallLimits = field(default_factory=CallLimits)

    @property
    def acts_by_itself(self) -> bool:
        """Whether its whole turn may have effects that nobody here sees: it is a program that uses tools of its own."""
        return bool(getattr(self.runner, 'acts_by_itself', False))


def backends_of(given: Sequence[Backend | tuple[str, TurnRunner]], publish: Callable[[Event], None]) -> list[Backend]:
    """Returns backends; where only a name and a runner are given, with a health of their own."""
    return [
        each if isinstance(each, Backend) else Backend(each[0], each[1], BackendHealth(each[0], publish))
        for each in given
    ]
