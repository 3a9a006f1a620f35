"""What a rollover asks of whoever looks after a desk's skills, and what it gets."""

from datetime import date
from typing import Protocol

import msgspec


class Curated(msgspec.Struct, frozen=True):
    """What a curator made of a day.

    Attributes:
        proposed: How many changes to skills wait for a person.
        applied: How many were made.
        refused: How many the model asked for that cannot be made.
    """

    proposed: int = 0
    applied: int = 0
    refused: int = 0


class Curator(Protocol):
    """Reviews a desk's own skills."""

    async def review(self, trading_date: date) -> Curated | None:
        """Looks at what the day taught, and returns what came of it where that can be said."""
        ...
