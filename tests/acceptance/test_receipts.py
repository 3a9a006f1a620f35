"""What a sender is told: accepted once, or turned away with a reason; and who comes first."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from process import Process, Start

HANGING = (
    'max_trigger_size = "1KiB"\n[backends.hanging]\nkind = "offline"\nhang_every = 1\n'
    '[[desks]]\nname = "main"\nbackends = ["hanging"]\nqueue_limit = 3\n'
)
SLOW = '[backends.slow]\nkind = "offline"\ndelay = "150ms"\n[[desks]]\nname = "main"\nbackends = ["slow"]\n'


async def all_at_once(daemon: Process, trigger_id: str) -> list[str]:
    """Sends one id 17 times over HTTP and 3 times by the command line, all at once; returns each status."""

    def by_command() -> str:
        done = daemon.cli('--json', 'send', 'main', 'the same', '--id', trigger_id)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)['status'])

    def by_http() -> str:
        return str(daemon.send('the same', id=trigger_id)['status'])

    calls = [asyncio.to_thread(by_command) for _ in range(3)] + [asyncio.to_thread(by_http) for _ in range(17)]
    return list(await asyncio.gather(*calls))


async def test_twenty_of_one_id(start: Start) -> None:
    """Of twenty sends of one id at once one is accepted and the others are duplicates: there is one exchange."""
    daemon = start(SLOW).ready()
    statuses = await all_at_once(daemon, 'same')
    assert sorted(statuses) == ['accepted'] + ['duplicate'] * 19
    daemon.wait_for('turn_finished')
    daemon.send('the last', id='last')
    daemon.wait_for('turn_finished', trigger_id='last')
    assert daemon.files_of().answered() == ['same', 'last']
    daemon.kill()
    again = start(SLOW).ready()
    assert again.send('the same', id='same')['status'] == 'duplicate'


def test_turned_away(start: Start) -> None:
    """What is too large, expired, sent to no desk or to a full queue is refused with reason, hint and exit code 1."""
    daemon = start(HANGING).ready()
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    cases: list[tuple[dict[str, Any], str, int]] = [
        ({'text': 'x' * 1025}, 'too_large', 413),
        ({'text': 'x' * 20_000}, 'too_large', 413),
        ({'text': 'too late', 'expires_at': past}, 'expired', 409),
        ({'text': ' \n'}, 'invalid', 400),
    ]
    for body, reason, status in cases:
        told = daemon.request('POST', '/v1/desks/main/triggers', body)
        assert (told[0], told[1]['status'], told[1]['reason']) == (status, 'refused', reason)
    assert daemon.request('POST', '/v1/desks/mian/triggers', {'text': 'hello'})[1]['reason'] == 'unknown_desk'
    for number in range(3):
        assert daemon.send('x' * 1024, id=f'full-{number}')['status'] == 'accepted'
    status, told_full = daemon.request('POST', '/v1/desks/main/triggers', {'text': 'one more', 'id': 'more'})
    assert (status, told_full['reason']) == (503, 'queue_full')
    assert daemon.send('x' * 1024, id='full-0')['status'] == 'duplicate'
    done = daemon.cli('--json', 'send', 'main', 'one more', '--id', 'more')
    assert done.returncode == 1
    assert json.loads(done.stdout) == {'id': 'more', 'desk': 'main', 'status': 'refused', 'reason': 'queue_full'}
    assert 'hint: ' in done.stderr
    assert daemon.cli('send', 'mian', 'hello').returncode == 1
    reasons = {line['reason'] for line in daemon.found('trigger_refused')}
    assert reasons == {'too_large', 'expired', 'unknown_desk', 'queue_full'}
    assert [record['trigger']['id'] for record in daemon.files_of().records('accepted')] == [
        f'full-{number}' for number in range(3)
    ]


def test_a_person_overtakes(start: Start) -> None:
    """A person's message is answered before a hundred announcements that wait, right after the turn that runs."""
    daemon = start(SLOW.replace('150ms', '1s')).ready()
    for number in range(100):
        daemon.send(f'announcement {number}', id=f'feed-{number}')
    sent_after = len(daemon.files_of().exchanges())
    done = daemon.cli('--json', 'send', 'main', 'What do we hold?', '--id', 'person', '--wait')
    assert json.loads(done.stdout)['outcome'] == 'answered'
    answered = daemon.files_of().answered()
    place = answered.index('person')
    # The turn that runs comes first, and maybe another one while the command started.
    assert place < 40
    daemon.wait_for('turn_finished', trigger_id='person')
    accepted_at = next(line['seq'] for line in daemon.found('trigger_accepted', trigger_id='person'))
    finished_at = daemon.found('turn_finished', trigger_id='person')[0]['seq']
    between = [line for line in daemon.found('turn_finished') if accepted_at < line['seq'] < finished_at]
    assert len(between) <= 1
    assert sent_after <= place
    assert daemon.found('trigger_accepted', trigger_id='person')[0]['queue_depth'] > 50


def test_stale(start: Start) -> None:
    """A trigger that expires while it waits is closed as stale and never run; a sender who waits is told, exit 1."""
    daemon = start(HANGING.replace('hang_every = 1', 'delay = "4s"')).ready()
    daemon.send('the running one', id='running')
    daemon.wait_for('turn_started')
    done = daemon.cli('--json', 'send', 'main', 'by then too late', '--id', 'stale', '--expires-in', '500ms', '--wait')
    assert done.returncode == 1
    assert json.loads(done.stdout)['outcome'] == 'stale'
    assert 'it had expired before its turn came' in done.stderr
    daemon.wait_for('trigger_closed', trigger_id='stale', outcome='stale')
    daemon.send('the next one', id='next')
    daemon.wait_for('turn_finished', trigger_id='next')
    assert daemon.files_of().answered() == ['running', 'next']
    assert not daemon.found('turn_started', trigger_id='stale')


def test_at(start: Start) -> None:
    """`send --at` waits for its time, across a kill too, while what came later is answered."""
    daemon = start(SLOW).ready()
    at = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    done = daemon.cli('send', 'main', 'at its time', '--id', 'timed', '--at', at)
    assert done.returncode == 0, done.stderr
    daemon.send('now', id='now')
    daemon.wait_for('turn_finished', trigger_id='now')
    assert not daemon.found('turn_started', trigger_id='timed')
    daemon.kill()
    again = start(SLOW)
    started = again.wait_for('turn_started', trigger_id='timed')
    assert started['timestamp'] >= at[:23]
    assert started['wait_ms'] < 10_000
    again.wait_for('turn_finished', trigger_id='timed')
    assert again.files_of().answered() == ['now', 'timed']
