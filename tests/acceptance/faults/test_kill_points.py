"""The daemon is killed at any moment and in any call: nothing acknowledged is lost, and nothing is done twice."""

import os

import kills
import pytest
from findings import Budget

needs_strace = pytest.mark.skipif(
    bool(kills.missing()) and not os.environ.get('TRADING_AGENT_TEST_ALL'), reason=f'SKIPPED: {kills.missing()}'
)


def test_killed_again_and_again() -> None:
    """Over a round of kills each acknowledged trigger has one exchange, in order, and what is mended is told."""
    found = kills.run(Budget(rounds=1))
    found.check()
    assert found.counts['kills'] >= 18
    assert found.counts['kills_in_calls'] >= 1
    assert found.counts['triggers_acknowledged'] >= 10
    assert found.counts['rollovers'] >= 1


@needs_strace
def test_killed_at_system_calls() -> None:
    """A daemon that is killed as it enters a system call, whichever, leaves its next start everything that it needs."""
    assert not kills.missing(), kills.missing()
    found = kills.at_system_calls(3)
    found.check()
    assert found.counts['strace_kills'] >= 1


def test_chosen_calls() -> None:
    """Killed behind an exchange, inside one, and behind a new session's log, nothing is lost or done twice."""
    kills.trial('').check()
