"""kill -9 in the middle of an answer: whatever anybody was shown is in the journal, and nothing is answered twice."""

import http.client
import json
import random
import threading
import time
from pathlib import Path

from process import Process, Start, UnixConnection, until

from trading_agent.conversation.journal import verify

STREAMING = """
[backends.slow]
kind = "offline"
delay = "30ms"
chunk_delay = "6ms"

[[desks]]
name = "main"
backends = ["slow"]
"""
ROUNDS = 10
LONG = 'Never trade XYZ before the results. ' * 12


class Watcher:
    """Sends a trigger and reads its answer as it comes, like `send --wait`.

    Attributes:
        shown: The text that came before the daemon was gone.
        answered: Whether the answer came to its end.
    """

    def __init__(self, daemon: Process, trigger_id: str) -> None:
        self.shown = ''
        self.answered = False
        self._socket = daemon.workspace / 'control.sock'
        self._body = json.dumps({'text': f'{LONG} ({trigger_id})', 'id': trigger_id, 'priority': 'person'})
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        connection = UnixConnection(self._socket)
        try:
            connection.request('POST', '/v1/desks/main/triggers?wait=true', self._body)
            response = connection.getresponse()
            while line := response.readline():
                told = json.loads(line)
                self.shown += told.get('text', '')
                self.answered = self.answered or 'result' in told
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the daemon was killed: what came before counts
        finally:
            connection.close()

    def join(self) -> 'Watcher':
        """Waits until nothing more can come."""
        self._thread.join()
        return self


def journal_lines(daemon: Process) -> list[dict[str, object]]:
    """Returns the records of the desk's only journal, read plainly."""
    found = []
    for line in _journal(daemon).read_bytes().split(b'\n'):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _journal(daemon: Process) -> Path:
    (path,) = (daemon.workspace / 'desks/main/journal').glob('*.jsonl')
    return path


def test_whatever_was_shown_is_in_the_journal(start: Start) -> None:
    """Over ten kills in a streamed answer: what was shown is written, what was cut off is marked and run again once."""
    moments = random.Random(20261020)  # noqa: S311 - the same moments each time
    watchers: dict[str, Watcher] = {}
    for number in range(ROUNDS):
        daemon = start(STREAMING).ready()
        until(lambda: daemon.desk()['queue'] == 0, 'what was cut off is answered')  # noqa: B023 - of this round
        watcher = watchers[f't{number}'] = Watcher(daemon, f't{number}')
        until(lambda: watcher.shown, 'the answer begins')  # noqa: B023 - of this round
        time.sleep(moments.uniform(0, 0.15))
        daemon.kill()
        watcher.join()
    daemon = start(STREAMING).ready()
    until(lambda: daemon.desk()['queue'] == 0, 'the last one is answered')
    assert daemon.stop() == 0

    lines = journal_lines(daemon)
    cut = 0
    for trigger_id, watcher in watchers.items():
        first, second = f'{trigger_id}:1', f'{trigger_id}:2'
        written = ''.join(str(line['text']) for line in lines if line['type'] == 'text' and line['turn_id'] == first)
        assert written.startswith(watcher.shown), (trigger_id, written, watcher.shown)
        ends = [(line['type'], line['turn_id']) for line in lines if str(line['type']) in ENDS and 'turn_id' in line]
        own = [end for end in ends if str(end[1]).startswith(f'{trigger_id}:')]
        assert own in ([('turn_finished', first)], [('turn_interrupted', first), ('turn_finished', second)])
        cut += len(own) - 1
        assert not (watcher.answered and len(own) > 1), 'what was told as answered is not run again'
    assert cut >= 3
    assert daemon.files_of().answered() == list(watchers)
    assert verify(_journal(daemon)).broken is None


ENDS = ('turn_finished', 'turn_interrupted')


def test_a_turn_that_had_ended_is_not_run_again(start: Start) -> None:
    """With its end in the journal and its exchange lost, the restart makes the exchange from the journal, no turn."""
    daemon = start(STREAMING).ready()
    for trigger_id in ('a', 'b'):
        daemon.send(f'told by {trigger_id}', id=trigger_id)
        daemon.wait_for('turn_finished', trigger_id=trigger_id)
    daemon.kill()
    files = daemon.files_of()
    (log,) = (files.folder / 'sessions').glob('*.jsonl')
    exchanges = log.read_bytes()
    # As a power cut leaves it that came after the journal was synced and before the exchange was.
    log.write_bytes(exchanges[: exchanges[:-1].rindex(b'\n') + 1])
    triggers = files.folder / 'triggers.jsonl'
    kept = [line for line in triggers.read_bytes().split(b'\n') if not (b'"closed"' in line and b'"b"' in line)]
    triggers.write_bytes(b'\n'.join(kept))
    again = start(STREAMING).ready()
    again.wait_for('trigger_closed', trigger_id='b', outcome='answered')
    assert log.read_bytes() == exchanges
    assert not again.found('turn_started')
    assert not again.found('turn_interrupted')
    assert again.desk()['queue'] == 0
    assert again.stop() == 0
    assert files.answered() == ['a', 'b']
    assert [line['type'] for line in journal_lines(again)].count('turn_started') == 2
