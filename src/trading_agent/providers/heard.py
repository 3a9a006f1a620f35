"""A conversation as pairs of what was told and what was answered."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from trading_agent.clock import utc_text
from trading_agent.messages import AssistantMessage, Message, UserMessage


class Heard(Protocol):
    """What was told once, and what was answered; an exchange of a desk is one."""

    @property
    def trigger_text(self) -> str:
        """What was told."""
        ...

    @property
    def answer(self) -> str:
        """The final answer; empty where there was none."""
        ...

    @property
    def finished_at(self) -> str:
        """When it was answered, as an ISO 8601 string; empty where that is not known."""
        ...


class Pair(msgspec.Struct, frozen=True):
    """A user's message, and the model's last one before the next.

    Attributes:
        trigger_text: What was told.
        answer: The final answer; empty where there was none.
        timestamp: When it was answered, else when it was told, as Unix time in seconds; 0 where neither is known.
    """

    trigger_text: str = ''
    answer: str = ''
    timestamp: float = 0.0

    @property
    def finished_at(self) -> str:
        """The timestamp as an ISO 8601 string in UTC; empty where it is not known, or is no time."""
        try:
            return utc_text(datetime.fromtimestamp(self.timestamp, UTC)) if self.timestamp else ''
        except (ValueError, OverflowError, OSError):
            return ''


class Hearing:
    """Makes pairs of conversations. Where one is the last one gone on, only what is new in it is read."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._pairs: list[Pair] = []

    def pairs_of(self, messages: Sequence[Message]) -> list[Pair]:
        """Returns the pairs of a conversation, oldest first. A tool's call and its result are no part of one."""
        said, known = list(messages), len(self._messages)
        if said[:known] != self._messages:
            self._pairs, known = [], 0
        self._messages = said
        for message in said[known:]:
            if isinstance(message, UserMessage):
                self._pairs.append(Pair(message.content, '', message.timestamp))
            elif isinstance(message, AssistantMessage):
                told = self._pairs.pop() if self._pairs else Pair()
                self._pairs.append(Pair(told.trigger_text, message.text, message.timestamp or told.timestamp))
        return self._pairs.copy()
