"""Whatever is done to the daemon from outside, it answers others, stays within its bounds and its workspace."""

import outside
import pytest
from findings import Budget


def test_outside() -> None:
    """Rude clients and odd things in an inbox, each once: all is refused or stored harmlessly, and all is told."""
    outside.run(Budget(rounds=1)).check()


@pytest.mark.parametrize('plant', ['', *outside.CATCHES])
def test_what_is_planted_is_found(plant: str) -> None:
    """A file that others may read is found, whatever the umask, and nothing where none is."""
    assert bool(outside.trial(plant).faults) == bool(plant)
