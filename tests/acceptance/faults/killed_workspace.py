"""A workspace whose daemon is killed: starts it, sends it what it is to answer, kills it, and keeps count."""

import http.client
import json
import os
import random
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from killed_daemon import Kill, Start, Time
from killed_life import PATIENCE, Blocked, Life, Zygote
from process import UnixConnection

DESKS = ('main', 'feed', 'orders')
PRIORITIES = {'main': 'person', 'feed': 'feed', 'orders': 'timer'}

CONFIG = """
heartbeat_every = "1h"
drain = "10s"

[backends.slow]
kind = "offline"
delay = "8ms"
chunk_delay = "1ms"

[backends.flaky]
kind = "offline"
fail_every = 4

[backends.acting]
kind = "acting_backend:make"
effects = "{effects}"
pause = 0.004

[[desks]]
name = "main"
backends = ["slow"]

[[desks]]
name = "feed"
backends = ["flaky", "slow"]
collect = "20m"

[[desks]]
name = "orders"
backends = ["acting"]
skills = "apply"
"""


class Workspace:
    """A workspace, and what is known of it without looking into it.

    Args:
        folder: An empty folder, whose name is short.
        zygote: Starts its daemons.
        chances: What its texts are made of.
        shown: Its clock.

    Attributes:
        path: The workspace.
        effects: What the desk `orders` has done.
        shown: Its clock.
        lives: The lives so far.
        accepted: The triggers that were acknowledged, by desk, in their order.
        manual: How often each desk was asked for a rollover.
        counts: What was done.
    """

    def __init__(self, folder: Path, zygote: Zygote, chances: random.Random, shown: Time) -> None:
        self.path = folder / 'ws'
        self.effects = folder / 'effects'
        self.shown = shown
        self.lives: list[Life] = []
        self.accepted: dict[str, list[str]] = {desk: [] for desk in DESKS}
        self.manual: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._zygote = zygote
        self._chances = chances
        self._config = folder / 'config.toml'
        self._config.write_text(CONFIG.format(effects=self.effects))
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / 'notify'))
        self._waiting: dict[str, str] = {}
        self._sent: Counter[str] = Counter()

    def close(self) -> None:
        """Kills what still runs, and lets go of everything."""
        for life in self.lives:
            if not life.over:
                life.kill()
                self._end(life)
        self._notify.close()

    # -- lives -------------------------------------------------------------------------------------------------

    def start(self, told: str = '', *, kill: Kill | None = None, stopped: bool = False) -> Life:
        """Starts a daemon; a stopped one waits for SIGCONT."""
        number = len(self.lives)
        with suppress(BlockingIOError):
            while True:
                self._notify.recv(4096, socket.MSG_DONTWAIT)  # what was said before was said by another
        start = Start(
            config=str(self._config),
            workspace=str(self.path),
            log=str(self._folder / f'log-{number}'),
            notify=str(self._folder / 'notify'),
            time=self.shown,
            kill=kill,
            stopped=stopped,
        )
        pid = self._zygote.start(start)
        life = Life(number, pid, Path(start.log), told or str(kill), os.pidfd_open(pid))
        self.lives.append(life)
        self.counts['restarts'] += number > 0
        return life

    def ready(self, life: Life) -> bool:
        """Returns True once a daemon is ready, False when it has ended before.

        Raises:
            Blocked: It is not ready in time.
        """
        until = time.monotonic() + PATIENCE
        while life.wait(until, self._notify):
            if b'READY=1' in self._notify.recv(4096):
                return True
        return False

    def die(self, life: Life) -> int:
        """Waits until a daemon has ended by itself, or its time is over; returns its code.

        Raises:
            Blocked: It does neither.
        """
        life.wait(time.monotonic() + PATIENCE)
        return self._end(life)

    def _end(self, life: Life) -> int:
        code = self._zygote.wait(life.pid)
        os.close(life.death)
        life.over = True
        life.hang_up()
        for connection in life.asked:
            connection.close()
        return code

    def stop(self, life: Life) -> int:
        """Stops a daemon in order; returns its code.

        Raises:
            Blocked: It does not end.
        """
        os.kill(life.pid, signal.SIGTERM)
        return self.die(life)

    # -- what it is told ---------------------------------------------------------------------------------------

    def send(self, life: Life, desk: str) -> bool:
        """Sends a desk a trigger, or the one that was not acknowledged once more; returns whether it is now.

        Raises:
            Blocked: It is refused, or there is no answer.
        """
        if desk not in self._waiting:
            self._sent[desk] += 1
            self._waiting[desk] = f'{desk}-{self._sent[desk]}'
        body = {'id': self._waiting[desk], 'text': self._text(), 'priority': PRIORITIES[desk]}
        answer = self.ask(life, 'POST', f'/v1/desks/{desk}/triggers', body)
        if answer is None:
            return False
        if answer.get('status') not in ('accepted', 'duplicate'):
            raise Blocked(f'{body["id"]} was not accepted: {answer}')
        self.accepted[desk].append(self._waiting.pop(desk))
        self.counts['triggers_acknowledged'] += 1
        return True

    @property
    def unacknowledged(self) -> list[str]:
        """The desks that a trigger was sent to which was not acknowledged."""
        return list(self._waiting)

    def _text(self) -> str:
        rule = f'Remember: never sell ABC below {self._chances.randrange(10_000)}.'
        words = [
            rule,
            'NIFTY crossed ₹26,000 \u2028 hold.',
            '"quoted"\tand \\ more',
            'ÄÖÜ ₹₹₹ ' * 200,
            '\x85\x00 odd',
        ]
        return ' '.join(self._chances.sample(words, self._chances.choice((1, 1, 2))))

    def ask(self, life: Life, method: str, target: str, body: object = None) -> dict[str, Any] | None:
        """Makes a request; returns the answer, or None when the daemon ended before it came.

        Raises:
            Blocked: There is no answer.
        """
        until = time.monotonic() + PATIENCE
        while True:
            try:
                connection = life.connection = life.connection or UnixConnection(self.path / 'control.sock')
                connection.request(method, target, None if body is None else json.dumps(body))
                if life.wait(until, connection.sock) is None:
                    return None
                answer: dict[str, Any] = json.loads(connection.getresponse().read())
            except (OSError, http.client.HTTPException, ValueError):
                # It has ended, or is about to listen.
                life.hang_up()
                if life.ends_within(0.002) or time.monotonic() >= min(until, life.kill_at):
                    life.wait(until)
                    return None
            else:
                return answer

    def roll_over(self, life: Life, desk: str) -> None:
        """Asks for a rollover, and waits for nothing."""
        connection = UnixConnection(self.path / 'control.sock')
        life.asked.append(connection)
        with suppress(OSError):
            connection.request('POST', f'/v1/desks/{desk}/rollover')
            self.manual[desk] += 1

    # -- its rest ----------------------------------------------------------------------------------------------

    def settle(self, life: Life) -> None:
        """Returns once everything that was sent has its end.

        Raises:
            Blocked: It has not, in time.
        """
        if not self.ready(life):
            raise Blocked('it ended while it started')
        for desk in DESKS:
            self.ask(life, 'POST', f'/v1/desks/{desk}/resume')
        for desk in self.unacknowledged:
            self.send(life, desk)
        self.rest(life)

    def rest(self, life: Life) -> None:
        """Returns once nothing waits and nothing runs.

        Raises:
            Blocked: Something does, for too long.
        """
        until = time.monotonic() + PATIENCE
        while (status := self.ask(life, 'GET', '/v1/status')) is not None:
            busy = [desk for desk in status['desks'] if desk['queue'] or desk['turn']]
            if not busy:
                return
            if time.monotonic() >= until:
                raise Blocked(f'what waits is not answered: {busy}')
            time.sleep(0.01)
        raise Blocked('it ended by itself')
