"""What a part of the suite finds, and how much of it is run."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal['lost', 'twice', 'blocked', 'silent', 'broken']
"""`lost`: what was acknowledged is not there; `twice`: it was recorded, asked or announced more than once; `blocked`:
a desk, or a process, does not go on by itself; `silent`: what was wrong was mended or left out and not told;
`broken`: any other promise, such as an order, a chain, a mode, an exception."""


class Fault(NamedTuple):
    """One promise that was not kept."""

    kind: Kind
    what: str


@dataclass
class Findings:
    """What came of a part.

    Attributes:
        counts: How much was tried, by name: `kills`, `crash_states`.
        faults: The promises that were not kept, each with what repeats it.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def add(self, kind: Kind, what: str) -> None:
        """Notes a promise that was not kept."""
        self.faults.append(Fault(kind, what))

    def found(self, faults: Iterable[Fault], where: str) -> None:
        """Notes those that an audit found, with where."""
        self.faults += [Fault(kind, f'{where}: {what}') for kind, what in faults]

    def take(self, other: 'Findings') -> None:
        """Adds what another part, or another process, found."""
        self.counts += other.counts
        self.faults += other.faults

    def check(self) -> None:
        """Fails the test that calls it where a promise was not kept.

        Raises:
            AssertionError: One was not.
        """
        shown = '\n'.join(f'{kind}: {what}' for kind, what in self.faults[:20])
        assert not self.faults, f'{len(self.faults)} promises were not kept:\n{shown}'


class Budget:
    """How long a part runs: until its time or its rounds are over, whichever comes first; iterating counts the rounds.

    Args:
        seconds: The time, from now on.
        rounds: How many rounds.
        seed: What the part's chances come from: the same seed makes the same rounds.
    """

    def __init__(self, *, seconds: float = math.inf, rounds: int | None = None, seed: int = 20261019) -> None:
        self._until = time.monotonic() + seconds
        self._rounds = rounds
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        """Yields the rounds, from 0, for as long as there is budget."""
        number = 0
        while not self.spent and (self._rounds is None or number < self._rounds):
            yield number
            number += 1

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until

    @property
    def seconds_left(self) -> float:
        """The time that is left; infinite where only rounds count."""
        return self._until - time.monotonic()
