"""kill -9 at any moment: nothing that was accepted is lost, and nothing is answered twice."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from desk_files import DeskFiles
from process import Process, Start, until

SLOW = """
[backends.slow]
kind = "offline"
delay = "60ms"
chunk_delay = "2ms"

[[desks]]
name = "main"
backends = ["slow"]
"""

HANGING = """
[backends.hanging]
kind = "offline"
hang_every = 1

[[desks]]
name = "main"
backends = ["hanging"]
"""

NOTE = '[This message was cut off before it was answered (this is attempt '


def send_in_the_background(daemon: Process, trigger_id: str) -> Callable[[], bool]:
    """Sends a trigger while the daemon may be killed; returns what says whether it was acknowledged."""
    acknowledged = []

    def send() -> None:
        with suppress(OSError, ValueError):
            acknowledged.append(daemon.send(f'told by {trigger_id}', id=trigger_id))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()

    def was_acknowledged() -> bool:
        thread.join()
        return bool(acknowledged)

    return was_acknowledged


def test_killed_again_and_again(start: Start) -> None:
    """Over five kills at random moments each accepted trigger has one exchange, in order; a cut-off turn says so."""
    moments = random.Random(20261019)  # noqa: S311 - the same moments each time
    accepted: list[str] = []
    cut_off: set[str] = set()
    unacknowledged: list[str] = []
    for run in range(6):
        daemon = start(SLOW).ready()
        assert daemon.found('session_started')[0]['reason'] == ('resumed' if run else 'first')
        told = daemon.found('turn_interrupted', cause='crash')
        assert len(told) <= 1
        cut_off |= {line['trigger_id'] for line in told}
        for trigger_id in [*unacknowledged, *(f'{run}-{number}' for number in range(3))]:
            assert daemon.send(f'told by {trigger_id}', id=trigger_id)['status'] in ('accepted', 'duplicate')
            accepted.append(trigger_id)
        if run == 5:
            break
        # One answer a run, so that no trigger is cut off three times.
        daemon.wait_for('trigger_closed')
        last = f'{run}-last'
        was_acknowledged = send_in_the_background(daemon, last)
        time.sleep(moments.uniform(0, 0.3))
        daemon.kill()
        # It may be durable all the same: then it comes before what the next run is sent.
        unacknowledged = [] if was_acknowledged() else [last]
        accepted += [] if unacknowledged else [last]
    files = daemon.files_of()
    until(lambda: len(files.answered()) >= len(accepted), 'everything is answered')
    daemon.wait_for('turn_finished', trigger_id=accepted[-1])
    assert files.answered() == accepted
    assert cut_off
    check_notes(files, cut_off)
    assert daemon.desk()['queue'] == 0
    assert daemon.stop() == 0
    assert files.outcomes() == dict.fromkeys(accepted, 'answered')


def check_notes(files: DeskFiles, cut_off: set[str]) -> None:
    """Checks that the exchanges of these triggers and of no others begin with the note that they were cut off."""
    noted = {exchange['trigger_id'] for exchange in files.exchanges() if exchange['trigger_text'].startswith(NOTE)}
    assert noted == cut_off
    for exchange in files.exchanges():
        assert exchange['trigger_text'].endswith(f'told by {exchange["trigger_id"]}')


def test_a_send_without_an_answer_is_sent_again(start: Start) -> None:
    """A sender whose daemon was killed before it answered sends the same id again: the trigger is answered once."""
    daemon = start(SLOW).ready()
    for number in range(3):
        was_acknowledged = send_in_the_background(daemon, f'in-flight-{number}')
        daemon.kill()
        was_acknowledged()
        daemon = start(SLOW).ready()
        receipt = daemon.send(f'told by in-flight-{number}', id=f'in-flight-{number}')
        assert receipt['status'] in ('accepted', 'duplicate')
        daemon.wait_for('turn_finished', trigger_id=f'in-flight-{number}')
    assert daemon.files_of().answered() == [f'in-flight-{number}' for number in range(3)]


def test_priorities_survive_a_kill(start: Start) -> None:
    """After a kill the turn that was cut off comes first, then what persons sent, then timers, then feeds."""
    daemon = start(HANGING).ready()
    order = ['feed', 'feed', 'timer', 'person', 'timer', 'person']
    for number, priority in enumerate(order):
        daemon.send(f'told by {priority}-{number}', id=f'{priority}-{number}', priority=priority)
        if not number:
            daemon.wait_for('turn_started')
    daemon.kill()
    again = start(SLOW)
    again.wait_for('turn_finished', count=6)
    assert again.files_of().answered() == ['feed-0', 'person-3', 'person-5', 'timer-2', 'timer-4', 'feed-1']
    check_notes(again.files_of(), {'feed-0'})


def test_quarantine(start: Start) -> None:
    """A trigger that was cut off three times is quarantined, told with what to do, and the next one is run."""
    for attempt in (1, 2, 3):
        daemon = start(HANGING).ready()
        if attempt == 1:
            daemon.send('the poison', id='poison')
            daemon.send('the next one', id='next')
        else:
            told = daemon.found('turn_interrupted')
            assert [(line['trigger_id'], line['attempt'], line['cause']) for line in told] == [
                ('poison', attempt - 1, 'crash')
            ]
        daemon.wait_for('turn_started', trigger_id='poison', attempt=attempt)
        daemon.kill()
    daemon = start(SLOW)
    closed = daemon.wait_for('trigger_closed', trigger_id='poison')
    assert (closed['outcome'], closed['error']) == ('quarantined', 'it was cut off 3 times')
    assert 'send it again under another id' in closed['hint']
    daemon.wait_for('turn_finished', trigger_id='next')
    assert daemon.files_of().answered() == ['next']
    asked = daemon.cli('send', 'main', 'the poison', '--id', 'poison', '--wait')
    assert asked.returncode == 1
    assert 'quarantined' in asked.stderr


HANGING = (
    'drain = "100ms"\n[backends.h]\nkind = "offline"\nhang_every = 1\n[[desks]]\nname = "main"\nbackends = ["h"]\n'
)


def test_cut_off_then_stopped(start: Start) -> None:
    """A turn that an orderly stop interrupted is not told as cut off by a crash, as an earlier attempt was."""
    daemon = start(HANGING).ready()
    daemon.send('x', id='x')
    daemon.wait_for('turn_started', attempt=1)
    daemon.kill()
    daemon = start(HANGING).ready()
    daemon.wait_for('turn_started', attempt=2)
    assert daemon.stop() == 0
    daemon = start(HANGING).ready()
    daemon.wait_for('turn_started', attempt=3)
    assert not daemon.found('turn_interrupted', cause='crash')
