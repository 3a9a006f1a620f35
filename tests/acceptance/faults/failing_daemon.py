"""The daemon as the command line runs it, its control socket included, while its calls fail below Python."""

import http.client
import random
import time
from pathlib import Path

from auditor import audit
from findings import Findings
from process import Process
from quick_folder import quick_folder
from real_failures import CALLS, ERRORS, failing_calls, no_files_left

CONFIG = '[backends.quick]\nkind = "offline"\n[[desks]]\nname = "main"\nbackends = ["quick"]\n'
PATIENCE_SECONDS = 60.0
"""How long it may take until all is answered: a desk tries again after seconds, and waits longer each time."""


class FailingDaemon:
    """A daemon to which triggers are sent while its calls fail.

    Args:
        folder: Where its workspace is.
        findings: What was found.
    """

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._workspace = folder / 'ws'
        self._process = Process(self._workspace, CONFIG)
        self._findings = findings
        self._accepted: list[str] = []
        self._number = 0

    def _send(self) -> str:
        """Sends a trigger and returns what became of it."""
        self._number += 1
        trigger_id = f't{self._number}'
        try:
            receipt = self._process.send('x ' * 500, id=trigger_id)
        except (OSError, ValueError, http.client.HTTPException):
            return 'no answer'  # it may be durable all the same
        if receipt.get('status') == 'accepted':
            self._accepted.append(trigger_id)
        return str(receipt.get('status'))

    def live(self, chances: random.Random, times: int) -> None:
        """Lets its calls fail a few times; after each it goes on by itself, and in the end all is answered."""
        try:
            self._process.ready()
            self._send()
            for _ in range(times):
                self._fail(chances)
                self._findings.counts['io_errors'] += 1
            self._until_answered()
            self._stop()
            self._findings.found(audit(self._workspace, {'main': self._accepted}, settled=False), 'after its end')
            self._process.close()
            self._process = Process(self._workspace, CONFIG).ready()  # it adds what could not be written of answers
            self._stop()
            self._findings.found(audit(self._workspace, {'main': self._accepted}), 'after the next start')
        finally:
            self._process.close()

    def _stop(self) -> None:
        if self._process.stop():
            self._findings.add('broken', f'it ended with an error: {self._process.tail()}')

    def _fail(self, chances: random.Random) -> None:
        if chances.random() < 0.4:
            failing = no_files_left(self._process.pid, chances.randrange(5))
        else:
            when = f'{chances.randrange(1, 5)}{chances.choice(("", "+"))}'
            failing = failing_calls(self._process.pid, chances.choice(CALLS), chances.choice(ERRORS), when)
        with failing:
            for _ in range(3):
                self._send()
            time.sleep(0.05)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._send() not in ('accepted', 'duplicate'):
            if time.monotonic() > deadline:
                self._findings.add('blocked', f'it takes no triggers any more: {self._process.tail()}')
                return
            time.sleep(0.05)

    def _until_answered(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._process.desk()['queue']:
            if time.monotonic() > deadline:
                self._findings.add('blocked', f'{self._process.desk()}: {self._process.tail()}')
                return
            time.sleep(0.05)
        if self._process.found('desk_parked') or self._process.found('component_failed') or self._process.odd:
            self._findings.add('broken', f'a passing error parked it: {self._process.tail()}')


def failing_daemon(seed: str, plant: str = '', *, times: int = 3) -> Findings:
    """Lets the calls of a daemon fail a few times and returns what was found."""
    findings = Findings()
    with quick_folder() as folder:
        FailingDaemon(Path(folder), findings).live(random.Random(seed), times)  # noqa: S311 - no secret
    findings.faults = [fault._replace(what=f'seed {seed}: {fault.what}') for fault in findings.faults]
    return findings
