"""What one desk suffers harms no other, and is told where the operator looks."""

import json
from pathlib import Path

from process import Process, Start, until

THREE = """
heartbeat_every = "1s"

[backends.failing]
kind = "offline"
fail_every = 1

[[desks]]
name = "failing"
backends = ["failing"]

[[desks]]
name = "spoilt"

[[desks]]
name = "healthy"
"""


def spoil(workspace: Path, desk: str) -> None:
    """Puts a file where a desk's folder should be."""
    (workspace / 'desks').mkdir(parents=True)
    (workspace / 'desks' / desk).write_text('no folder')


def ask(daemon: Process, number: int) -> None:
    """Checks that the healthy desk answers."""
    daemon.send(f'hello {number}', 'healthy', id=f'hello-{number}')
    daemon.wait_for('turn_finished', desk='healthy', trigger_id=f'hello-{number}')


def test_one_fails_one_is_spoilt(start: Start, tmp_path: Path) -> None:
    """Beside a desk whose backend fails and one with a file for a folder a third answers; both are told with a hint."""
    spoil(tmp_path / 'ws', 'spoilt')
    daemon = start(THREE).ready()
    assert daemon.found('daemon_ready')[0]['desks_parked'] == 1
    parked = daemon.wait_for('desk_parked', desk='spoilt')
    assert parked['level'] == 'error'
    assert 'a file stands where a folder should be: move it away' in parked['hint']
    assert str(tmp_path / 'ws' / 'desks' / 'spoilt') in parked['error']
    daemon.send('anybody there?', 'failing', id='waits')
    for number in range(3):
        daemon.wait_for('turn_started', attempt=number + 1, desk='failing')
        assert daemon.wait_for('model_call_failed', desk='failing')['hint']
        ask(daemon, number)
    check_told(daemon)
    assert daemon.send('hello', 'spoilt')['reason'] == 'storage'
    status, told = daemon.request('POST', '/v1/desks/spoilt/rollover')
    assert (status, told['error']) == (409, 'the desk spoilt is parked')
    assert daemon.request('POST', '/v1/desks/failing/rollover')[1]['rolled_over'] is False
    beat = daemon.wait_for('daemon_heartbeat', desks_running=2, desks_parked=1, queue_depth=1)
    assert beat['oldest_trigger_desk'] == 'failing'
    assert not daemon.found('trigger_closed', desk='failing')
    assert daemon.stop() == 0
    assert daemon.files_of('healthy').answered() == ['hello-0', 'hello-1', 'hello-2']
    assert (tmp_path / 'ws' / 'desks' / 'spoilt').read_text() == 'no folder'


def check_told(daemon: Process) -> None:
    """Checks that `status` tells of both desks what is wrong and what to do."""
    status = json.loads(daemon.cli('--json', 'status').stdout)
    desks = {desk['name']: desk for desk in status['desks']}
    assert (desks['healthy']['state'], desks['healthy']['reason']) == ('running', '')
    assert desks['failing']['state'] == 'running'
    assert 'no backend can answer' in desks['failing']['reason']
    assert 'mend a backend' in desks['failing']['reason']
    (backend,) = desks['failing']['backends']
    assert (backend['name'], backend['state']) == ('failing', 'failing')
    assert (desks['failing']['queue'], desks['failing']['oldest_trigger_at'] is None) == (1, False)
    assert desks['spoilt']['state'] == 'parked'
    assert 'move it away; then `trading-agent resume spoilt`' in desks['spoilt']['reason']
    words = daemon.cli('status').stdout
    assert 'parked' in words
    assert 'move it away' in words
    assert 'mend a backend' in words


def test_mended_and_restarted(start: Start, tmp_path: Path) -> None:
    """A restart after the file is moved away and the backend mended brings both back, and what waited is answered."""
    spoil(tmp_path / 'ws', 'spoilt')
    daemon = start(THREE).ready()
    daemon.send('anybody there?', 'failing', id='waits')
    daemon.wait_for('model_call_failed')
    assert daemon.stop() == 0
    (tmp_path / 'ws' / 'desks' / 'spoilt').unlink()
    daemon = start(THREE.replace('fail_every = 1', '')).ready()
    daemon.wait_for('turn_finished', desk='failing', trigger_id='waits')
    daemon.send('hello', 'spoilt')
    daemon.wait_for('turn_finished', desk='spoilt')
    assert not daemon.found('desk_parked')
    (exchange,) = daemon.files_of('failing').exchanges()
    assert exchange['trigger_text'] == 'anybody there?'


def test_one_desk_hangs(start: Start) -> None:
    """A backend that never answers is cut off by `turn_timeout` and keeps no other desk from the one slot for all."""
    config = (
        'max_concurrent_turns = 1\n[backends.hanging]\nkind = "offline"\nhang_every = 1\n'
        '[[desks]]\nname = "hanging"\nbackends = ["hanging"]\nturn_timeout = "300ms"\n[[desks]]\nname = "healthy"\n'
    )
    daemon = start(config).ready()
    daemon.send('anybody there?', 'hanging')
    daemon.wait_for('turn_started', desk='hanging')
    for number in range(3):
        ask(daemon, number)
    failed = daemon.wait_for('model_call_failed', desk='hanging')
    assert 'no answer within 0.3 s' in failed['error']
    assert 'raise turn_timeout' in failed['hint']
    until(lambda: 'no answer within' in daemon.desk('hanging')['reason'], 'the status tells it')
    assert daemon.stop() == 0


def test_a_newer_format_is_left_alone(start: Start) -> None:
    """A desk whose files a newer version wrote is parked, told with what to do, and nothing of it is overwritten."""
    daemon = start().ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    assert daemon.stop() == 0
    path = daemon.workspace / 'desks' / 'main' / 'triggers.jsonl'
    newer = path.read_bytes().replace(b'"version":1', b'"version":2', 1)
    path.write_bytes(newer)
    daemon = start().ready()
    parked = daemon.wait_for('desk_parked')
    assert 'format 2' in parked['error']
    assert 'newer version' in parked['hint']
    assert daemon.send('hello again')['status'] == 'refused'
    assert daemon.stop() == 0
    assert path.read_bytes() == newer
