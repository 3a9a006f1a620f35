"""kill -9 at any moment of a desk that gathers: each message is in one exchange, and none is lost."""

import json
import random
import time
from collections import Counter

from process import Start, until

GATHERING = """
[backends.slow]
kind = "offline"
delay = "60ms"
chunk_delay = "1ms"

[[desks]]
name = "main"
backends = ["slow"]
collect = "150ms"
"""


def test_killed_while_it_gathers(start: Start) -> None:
    """Over five kills at random moments each message is named by one exchange and closed as answered."""
    moments = random.Random(20260310)  # noqa: S311 - the same moments each time
    accepted: list[str] = []
    for run in range(6):
        daemon = start(GATHERING).ready()
        assert len(daemon.found('turn_interrupted', cause='crash')) <= 1
        for number in range(4):
            accepted.append(f'{run}-{number}')
            assert daemon.send(f'told by {accepted[-1]}', id=accepted[-1])['status'] == 'accepted'
        if run < 5:
            # One answer a run, so that no trigger is cut off three times.
            daemon.wait_for('trigger_closed')
            time.sleep(moments.uniform(0, 0.35))
            daemon.kill()
    files = daemon.files_of()
    until(lambda: len(files.outcomes()) >= len(accepted), 'everything is closed')
    daemon.wait_for('turn_finished')
    assert daemon.stop() == 0
    assert files.outcomes() == dict.fromkeys(accepted, 'answered')
    exchanges = files.exchanges()
    named = [trigger_id for line in exchanges for trigger_id in line.get('trigger_ids', [line['trigger_id']])]
    assert Counter(named) == Counter(accepted)
    assert any(len(line.get('trigger_ids', [])) > 1 for line in exchanges)
    for line in exchanges:
        ids = line.get('trigger_ids', [line['trigger_id']])
        assert ids[0] == line['trigger_id']
        assert all(f'told by {trigger_id}' in line['trigger_text'] for trigger_id in ids)
        assert line['trigger_text'].count('told by ') == len(ids)
    why = daemon.cli('why', 'main', accepted[-1], '--json')
    assert json.loads(why.stdout)['outcome'] == 'answered'
