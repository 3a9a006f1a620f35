"""A daemon in a process of its own to which everything is done from outside that should not be."""

import json
import os
import random
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from auditor import audit
from findings import Findings, Kind
from odd_entries import SECRET, Entry, entries, put, take_away
from planted import environment
from process import Process, run_cli
from rude_clients import (
    ODD_NAMES,
    PATIENCE_SECONDS,
    Answer,
    closed,
    connect,
    drip,
    malformed,
    odd_names,
    odd_requests,
    request,
    say,
    status,
    staying,
    trigger,
)

FILES = 96
"""How many files the daemon may open."""

REQUEST_SECONDS = 0.3
MOST_MEMORY = 250 << 20
"""How much the daemon may take up, in bytes, whatever is done to it."""

MALFORMED = 40
"""How many malformed requests one round makes."""

ENTRIES = 20
"""How many things one round puts into the inbox."""

CONFIG = """
max_concurrent_turns = 4
[[desks]]
name = "main"
queue_limit = 100000
[[desks]]
name = "other"
"""

_OWN = re.compile(
    r'trading-agent\.lock|control\.sock|index\.sqlite3(-wal|-shm)?|index\.lock|disabled-backends\.json|desks'
    r'|desks/(main|other)(/(triggers\.jsonl|triggers|paused\.json|Memory\.md|memory_history|notes|skills|sessions|journal)'
    r'(/.*)?|/inbox(/.*)?)?',
    re.DOTALL,
)
"""What may be in a workspace."""


class Besieged:
    """A daemon in a process of its own, and what is done to it.

    Args:
        folder: Where its workspace is, and beside it what it must not touch.
        umask: With which umask it is started.
        findings: What comes of it.
        plant: A fault that is planted into it.
    """

    def __init__(self, folder: Path, umask: int, findings: Findings, plant: str = '') -> None:
        self._folder = folder
        self._findings = findings
        self._umask = umask
        self.workspace = folder / 'ws'
        self.socket = self.workspace / 'control.sock'
        self.inbox = self.workspace / 'desks' / 'main' / 'inbox'
        self._outside = folder / 'outside'
        self._outside.mkdir()
        (self._outside / 'secret.txt').write_text(SECRET)
        told = folder / 'told.json'
        told.write_text(json.dumps({'umask': umask, 'files': FILES, 'request_seconds': REQUEST_SECONDS}))
        program = [str(Path(__file__).with_name('outside_daemon.py')), str(told)]
        self.daemon = Process(self.workspace, CONFIG, program=program, environ=environment(plant))
        self._entries = entries(self._outside)
        self._accepted: list[str] = []
        self._where = ''

    def __enter__(self) -> Self:
        self.daemon.ready()
        self._before = self._around()
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.close()

    def add(self, kind: Kind, what: str) -> None:
        """Notes a promise that was not kept."""
        self._findings.add(kind, f'{self._where}, umask {self._umask:o}: {what}')

    def _around(self) -> dict[str, str]:
        """Returns what is beside the workspace."""
        found = {}
        for path in self._folder.rglob('*'):
            if path != self.workspace and self.workspace not in path.parents:
                found[str(path)] = path.read_text() if path.is_file() else ''
        return found

    # -- one round ---------------------------------------------------------------------------------------------

    def round(self, where: str, chance: random.Random, *, everything: bool) -> None:
        """Does some of it; all of it once where `everything` says so."""
        self._where = where
        requests = [('malformed', [malformed(chance)]) for _ in range(MALFORMED)]
        odd = list(odd_requests())
        names = [(name, [data]) for name, data in odd_names()]
        requests += [*odd, *names] if everything else chance.sample(odd, 4) + chance.sample(names, 8)
        chance.shuffle(requests)
        for name, pieces in requests:
            self._say(name, pieces)
        self.answers('what is malformed')
        self._many(chance)
        self._slow(chance)
        self._unread(chance)
        self._gone(chance)
        chosen = self._entries if everything else chance.sample(self._entries, ENTRIES)
        self._put(chosen)
        self.answers('all of it')

    def _say(self, name: str, pieces: list[bytes]) -> None:
        self._findings.counts['outside_requests'] += 1
        began = time.monotonic()
        try:
            answer = say(self.socket, *pieces, end=False)
        except OSError as error:
            self.add('blocked', f'{name}: {error!r} after {time.monotonic() - began:.1f} s: {pieces!r:.300}')
            return
        if answer.status >= 500 and answer.status != 503:
            self.add('broken', f'{name}: {answer.status} {answer.body!r:.300}: {pieces!r:.300}')
        self._note(answer)

    def _note(self, answer: Answer) -> None:
        try:
            receipt = json.loads(answer.body)
        except ValueError:
            return
        if answer.status == 200 and receipt.get('status') == 'accepted':
            self._accepted.append(receipt['id'])

    def answers(self, after: str) -> None:
        """Looks whether the daemon is alive, answers, and takes up no more than it may."""
        began = time.monotonic()
        try:
            told = status(self.socket)
        except OSError as error:
            told = None
            self.add('blocked', f'after {after}: {error!r}')
        seconds = time.monotonic() - began
        if told is None or seconds > PATIENCE_SECONDS / 2:
            self.add('blocked', f'after {after} a status takes {seconds:.1f} s: {told}')
        if not self.daemon.alive:
            self.add('broken', f'after {after} the daemon has ended:\n{self.daemon.tail()}')
            return
        memory = int(self._proc('status').partition('VmRSS:')[2].split()[0]) << 10
        if memory > MOST_MEMORY:
            self.add('broken', f'after {after} it takes up {memory >> 20} MiB')
        said = [line for line in self.daemon.lines if line['level'] in ('error', 'critical')]
        if said:
            self.add('broken', f'after {after} it says {len(said)} times {said[0]!r:.700}')
        self.daemon.lines.clear()
        if self.daemon.odd:
            self.add('broken', f'after {after} it prints {self.daemon.odd[:3]}')
            self.daemon.odd.clear()

    def _proc(self, name: str) -> str:
        return Path(f'/proc/{self.daemon.pid}/{name}').read_text()

    # -- at the socket -----------------------------------------------------------------------------------------

    def _many(self, chance: random.Random) -> None:
        """Opens more connections than the daemon takes, and leaves them open."""
        data = chance.choice(
            [b'', b'GET /v1/st', request('GET', '/v1/status'), b'POST /v1/reload HTTP/1.1\r\nHost: x\r\n']
        )
        count = chance.randrange(FILES, 3 * FILES)
        self._findings.counts['outside_requests'] += count
        with staying(self.socket, count, data) as clients:
            self.answers(f'{count} connections with {data!r}')
            files = len(os.listdir(f'/proc/{self.daemon.pid}/fd'))  # noqa: PTH208 - numbers
            if files > FILES * 3 / 4:
                self.add('broken', f'{files} of {FILES} files are open with {count} connections')
            left = count - closed(clients, 2 * REQUEST_SECONDS + 10)
            if left:
                self.add('blocked', f'{left} of {count} connections with {data!r} stay open')

    def _slow(self, chance: random.Random) -> None:
        """Sends a request so slowly that it never comes."""
        with connect(self.socket) as client:
            data = (
                trigger({'text': 'x' * 1000})
                if chance.random() < 0.5
                else request('GET', '/v1/status', b'', 'X: ' + 'x' * 900)
            )
            self._findings.counts['outside_requests'] += 1
            if not drip(client, data, REQUEST_SECONDS + 10, lambda: self.daemon.alive):
                self.add('blocked', 'a client that sends a byte at a time is waited for')

    def _unread(self, chance: random.Random) -> None:
        """Follows events, and waits for answers, without ever reading, while much is said."""
        waiting = trigger({'text': 'unread ' * 1000}, query='?wait=true')
        streams = [request('GET', '/v1/events'), request('GET', '/v1/events?event=turn_output'), waiting]
        with ExitStack() as stack:
            for stream in streams:
                stack.enter_context(staying(self.socket, 4, stream))
            self._findings.counts['outside_requests'] += 12
            for number in range(chance.randrange(20, 60)):
                self._say('much', [trigger({'text': f'{number} ' + 'much ' * 5000})])
            self.answers('streams that nobody reads')

    def _gone(self, chance: random.Random) -> None:
        """Leaves in the middle of everything."""
        whole = [
            trigger({'text': 'gone'}, query='?wait=true'),
            request('GET', '/v1/events'),
            request('GET', '/v1/status'),
        ]
        for _ in range(30):
            data = chance.choice(whole)
            self._findings.counts['outside_requests'] += 1
            with connect(self.socket) as client:
                client.sendall(data[: chance.randrange(len(data) + 1)])
        self.answers('clients that have left')

    # -- in the inbox ------------------------------------------------------------------------------------------

    def _put(self, chosen: list[Entry]) -> None:
        self._findings.counts['inbox_entries'] += len(chosen)
        put(self.inbox, chosen)
        until = time.monotonic() + PATIENCE_SECONDS * 2
        while waiting := [entry.name for entry in chosen if self._is_due(entry)]:
            if time.monotonic() > until:
                self.add('blocked', f'still in the inbox: {waiting}')
                break
            time.sleep(0.05)
        for entry in chosen:
            self._look_at(entry)
        take_away(self.inbox, chosen)

    def _is_due(self, entry: Entry) -> bool:
        stays = entry.fate in ('left', 'passed over')
        return not stays and os.path.lexists(self.inbox / os.fsdecode(entry.name))

    def _look_at(self, entry: Entry) -> None:
        stays = entry.fate in ('left', 'passed over')
        there = os.path.lexists(self.inbox / os.fsdecode(entry.name))
        if stays and not there:
            self.add('lost', f'{entry.name!r} is not where it was')
        kept = os.fsdecode(entry.name)[:20]
        rejected = [name for name in os.listdir(self.inbox / 'rejected') if name.startswith(kept)]  # noqa: PTH208
        if entry.fate == 'rejected' and not any(name.endswith('.reason') for name in rejected):
            self.add('silent', f'{entry.name!r} is rejected without a reason: {rejected}')
        if entry.fate == 'taken' and rejected:
            self.add('lost', f'{entry.name!r} is rejected: {rejected}')

    # -- by the command line -----------------------------------------------------------------------------------

    def commands(self) -> None:
        """Gives names that are paths to commands of the command line."""
        names = [name for name in ODD_NAMES if '\0' not in name and name and not name.startswith('-')][:3]
        where = ['--workspace', str(self.workspace)]
        for name in names:
            for arguments in (
                ['send', name, 'x'],
                ['send', 'main', 'x', '--id', name],
                ['why', 'main', name],
                ['show', name],
                ['cancel', 'main', name],
            ):
                self._findings.counts['outside_requests'] += 1
                done = run_cli(*where, *arguments)
                if done.returncode not in (0, 1, 2) or 'Traceback' in done.stderr:
                    self.add('broken', f'{arguments}: {done.returncode} {done.stderr[-300:]}')

    # -- in the end --------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stops the daemon, and looks what it has left."""
        self._where += ', in the end'
        self.answers('everything')
        if self.daemon.stop() != 0:
            self.add('broken', f'it ends with another code than 0:\n{self.daemon.tail()}')
        if self._around() != self._before:
            self.add('broken', f'beside the workspace there is {self._around()}, and was {self._before}')
        for path in self.workspace.rglob('*'):
            name = os.fsencode(path.relative_to(self.workspace)).decode(errors='replace')
            if not _OWN.fullmatch(name):
                self.add('broken', f'a file of the name {name!r} was made')
        self._findings.found(audit(self.workspace, settled=False), self._where)
        written = b''.join(path.read_bytes() for path in self.workspace.rglob('*.jsonl'))
        if SECRET.encode() in written or b'root:x:0' in written:
            self.add('broken', 'what was out of the workspace was told to a desk')
        for trigger_id in self._accepted:
            if json.dumps(trigger_id, ensure_ascii=False).encode() not in written:
                self.add('lost', f'{trigger_id} was accepted, and is nowhere')
