"""What no honest source sends harms nobody: not the daemon, not the other clients, not what is beside the workspace."""

import outside
from findings import Budget


def test_input_from_outside() -> None:
    """Whatever comes to socket and inbox, under any umask, honest messages are answered and nothing gets out."""
    findings = outside.run(Budget(rounds=3))
    findings.check()
    assert findings.counts['outside_requests'] > 400
    assert findings.counts['inbox_entries'] >= 30
