"""Audits a workspace by its files alone: `python auditor.py WORKSPACE [ACCEPTED.json] [--open]`.

It shares no code with the program that wrote them. ACCEPTED.json has, for each desk, the ids of the triggers that were
acknowledged, in the order in which they must be answered. With --open triggers may still wait for their answer.
"""

import json
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from findings import Fault

Line = dict[str, Any]

_SESSION = re.compile(r'(\d{4}-\d{2}-\d{2})-([1-9]\d*)')
_SECTION = re.compile(rf'^## Session ({_SESSION.pattern})( \(degraded\))?$', re.MULTILINE)


def _order(session_id: str) -> tuple[str, int]:
    date, _, number = session_id.rpartition('-')
    return date, int(number)


def lines_of(path: Path) -> list[tuple[bytes, Line | None]]:
    """Returns the lines of a file that are not blank, each with what it says, or None for a torn one."""
    found: list[tuple[bytes, Line | None]] = []
    for line in path.read_bytes().split(b'\n') if path.exists() else []:
        if line.strip():
            read = None
            with suppress(ValueError, RecursionError):
                read = json.loads(line)
            found.append((line, read if isinstance(read, dict) else None))
    return found


def _said(path: Path) -> list[Line]:
    return [line for _, line in lines_of(path) if line is not None]


def _sessions_in(folder: Path) -> list[str]:
    names = [path.stem for path in folder.glob('*.jsonl')] if folder.is_dir() else []
    return sorted((name for name in names if _SESSION.fullmatch(name)), key=_order)


def _as_linked(folder: Path, journals: Sequence[str]) -> list[str]:
    """Returns the sessions in the order in which their journals follow each other."""
    before = {each: next(iter(_said(folder / f'{each}.jsonl')), {}).get('previous_session_id') for each in journals}
    after = {previous: each for each, previous in before.items() if previous}
    linked = [each for each in journals if not before[each]][:1]
    while linked and (following := after.pop(linked[-1], None)):
        linked.append(following)
    return linked + [each for each in journals if each not in linked]


class DeskAudit:
    """What the files of one desk say.

    Args:
        folder: The desk's folder.
        accepted: The ids of the triggers that were acknowledged, in the order in which they must be answered.
        settled: Whether everything must have come to its end.
        clock_was_set: Whether the clock was put right in between, so that a session may follow one of a later date:
            the order of the sessions is then as the journals say.
    """

    def __init__(
        self, folder: Path, accepted: Sequence[str] = (), *, settled: bool = True, clock_was_set: bool = False
    ) -> None:
        self._folder = folder
        self._accepted = accepted
        self._settled = settled
        self._journals = _sessions_in(folder / 'journal')
        self._sessions = _sessions_in(folder / 'sessions')
        self._archives = _sessions_in(folder / 'triggers')
        if clock_was_set:
            self._journals = _as_linked(folder / 'journal', self._journals)
            for each in (self._sessions, self._archives):
                each.sort(key=self._journals.index)
        self._exchanges = {each: _said(folder / 'sessions' / f'{each}.jsonl') for each in self._sessions}
        self._closed: dict[str, list[Line]] = {}
        self._open: set[str] = set()
        self._read_triggers()

    def _read_triggers(self) -> None:
        archive = [self._folder / 'triggers' / f'{each}.jsonl' for each in self._archives]
        inodes: set[int] = set()
        for path in [*archive, self._folder / 'triggers.jsonl']:
            if not path.exists() or path.stat().st_ino in inodes:
                continue
            inodes.add(path.stat().st_ino)
            for record in _said(path):
                if record.get('type') == 'accepted':
                    self._open.add(record['trigger']['id'])
                elif record.get('type') == 'closed':
                    self._open.discard(record['id'])
                    known = self._closed.setdefault(record['id'], [])
                    if record not in known:  # the week of ids is carried along, word for word
                        known.append(record)

    def faults(self) -> Iterator[Fault]:
        """Yields what is not as it was promised."""
        yield from self._of_triggers()
        yield from self._of_state()
        yield from self._of_summaries()
        yield from self._of_journals()
        yield from self._of_finished_turns()
        if self._settled:
            for path in self._folder.rglob('*'):
                if path.name == 'rollover.json' or (path.name.startswith('.') and path.name.endswith('.tmp')):
                    yield Fault('blocked', f'{path.name} is still there')

    # -- triggers and exchanges --------------------------------------------------------------------------------

    def _answers(self) -> list[tuple[str, str]]:
        """Returns the id of each trigger that was answered with its session, in the order of the answers."""
        return [
            (answered, session_id)
            for session_id in self._sessions
            for exchange in self._exchanges[session_id]
            for answered in exchange.get('trigger_ids') or filter(None, [exchange.get('trigger_id')])
        ]

    def _of_triggers(self) -> Iterator[Fault]:
        answers = self._answers()
        by_id = dict(answers)
        for trigger_id, times in Counter(answered for answered, _ in answers).items():
            if times > 1:
                yield Fault('twice', f'{trigger_id} has {times} exchanges')
        for trigger_id in self._accepted:
            if trigger_id not in by_id and trigger_id not in self._open and trigger_id not in self._closed:
                yield Fault('lost', f'{trigger_id} was acknowledged, and is in no file')
        for trigger_id, closings in self._closed.items():
            if len(closings) > 1:
                yield Fault('twice', f'{trigger_id} was closed {len(closings)} times')
            outcome, named = closings[-1]['outcome'], closings[-1].get('session_id')
            if outcome == 'answered' and by_id.get(trigger_id) != named:
                yield Fault('lost', f'{trigger_id} is closed as answered in {named}, which has no exchange of it')
            if outcome != 'answered' and trigger_id in by_id:
                yield Fault('twice', f'{trigger_id} is closed as {outcome} and has an exchange')
        if self._settled:
            for trigger_id in self._open:
                yield Fault('blocked', f'{trigger_id} is still open')
        asked = {trigger_id: at for at, trigger_id in enumerate(self._accepted)}
        order = [asked[answered] for answered, _ in answers if answered in asked]
        if order != sorted(order):
            yield Fault('broken', 'the triggers were not answered in their order')

    # -- sessions ----------------------------------------------------------------------------------------------

    def _of_state(self) -> Iterator[Fault]:
        path = self._folder / 'sessions' / 'state.json'
        if not path.exists():
            if self._sessions and self._settled:
                yield Fault('lost', 'there is no state.json')
            return
        try:
            state = json.loads(path.read_bytes())
        except ValueError:
            yield Fault('broken', 'state.json is not whole')
            return
        session_id = state['session_id']
        if session_id not in self._sessions:
            yield Fault('lost', f'state.json names {session_id}, which has no log')
        elif session_id != self._sessions[-1] and self._settled:
            yield Fault('broken', f'state.json names {session_id}, and there is {self._sessions[-1]}')
        if not session_id.startswith(state['trading_date']):
            yield Fault('broken', f'state.json names {session_id} and the date {state["trading_date"]}')
        for name, route in state['routes'].items():
            there = len(self._exchanges.get(session_id, []))
            if route['exchanges_seen'] > there:
                yield Fault('broken', f'{name} has seen {route["exchanges_seen"]} exchanges of {there}')

    def _of_summaries(self) -> Iterator[Fault]:
        found: list[tuple[str, str]] = []
        for path in sorted((self._folder / 'sessions' / 'summaries').glob('*.md')):
            found += [(path.stem, heading[1]) for heading in _SECTION.finditer(path.read_text())]
        for session_id, times in Counter(session_id for _, session_id in found).items():
            if times > 1:
                yield Fault('twice', f'{session_id} has {times} sections in the summaries')
        for day, session_id in found:
            if not session_id.startswith(day):
                yield Fault('broken', f'the summary of {session_id} is filed under {day}')
            if not self._exchanges.get(session_id):
                yield Fault('broken', f'{session_id} has a summary and no exchange')
        if self._settled:
            summed_up = {session_id for _, session_id in found}
            for session_id in self._sessions[:-1]:
                if self._exchanges[session_id] and session_id not in summed_up:
                    yield Fault('lost', f'{session_id} has ended without a summary')

    # -- journals ----------------------------------------------------------------------------------------------

    def _of_journals(self) -> Iterator[Fault]:
        before, last_digest = '', ''
        for session_id in self._journals:
            header: Line | None = None
            number, digest = 0, ''
            for raw, line in lines_of(self._folder / 'journal' / f'{session_id}.jsonl'):
                if line is None:
                    continue  # what a crash tore is no part of the chain
                if line.get('type') == 'session_header':
                    header = line
                else:
                    number += 1
                    if (line.get('number'), line.get('previous')) != (number, digest):
                        yield Fault('broken', f'the chain of the journal {session_id} breaks at record {number}')
                        break
                digest = blake2b(raw, digest_size=16).hexdigest()
            if header is None:
                yield Fault('broken', f'the journal {session_id} has no header')
            elif before and (header.get('previous_session_id'), header.get('previous_digest')) != (before, last_digest):
                yield Fault('broken', f'the journal {session_id} does not go on where {before} ended')
            before, last_digest = session_id, digest
        for session_id in self._sessions:
            journaled = any(exchange.get('trigger_id') for exchange in self._exchanges[session_id])
            if session_id not in self._journals and (journaled or self._settled):
                yield Fault('lost', f'{session_id} has no journal')

    def _of_finished_turns(self) -> Iterator[Fault]:
        for session_id in self._journals:
            begun: dict[str, Line] = {}
            ended: list[str] = []
            for record in _said(self._folder / 'journal' / f'{session_id}.jsonl'):
                if record.get('type') == 'turn_started' and record.get('purpose') == 'turn':
                    begun[record['turn_id']] = record
                elif (record.get('type'), record.get('outcome')) == ('turn_finished', 'answered'):
                    ended += [begun[record['turn_id']]['trigger_id']] if record['turn_id'] in begun else []
            logged = [exchange.get('trigger_id') for exchange in self._exchanges.get(session_id, [])]
            missing = [trigger_id for trigger_id in ended if trigger_id not in logged]
            if missing and self._settled:
                yield Fault('lost', f'finished turns of {session_id} have no exchange: {missing}')
            unproved = [trigger_id for trigger_id in logged if trigger_id and trigger_id not in ended]
            if unproved:
                yield Fault('broken', f'exchanges of {session_id} have no finished turn: {unproved}')


def modes(workspace: Path) -> Iterator[Fault]:
    """Yields the files that others than their owner may read or write."""
    for path in [workspace, *workspace.rglob('*')]:
        status = path.lstat()
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(status.st_mode) != wanted:
            yield Fault('broken', f'{path.name} has the mode {stat.S_IMODE(status.st_mode):o}')


def audit(
    workspace: Path,
    accepted: Mapping[str, Sequence[str]] | None = None,
    *,
    settled: bool = True,
    clock_was_set: bool = False,
) -> list[Fault]:
    """Returns what is not as it was promised.

    Args:
        workspace: The workspace.
        accepted: The ids of the triggers that were acknowledged, by desk, in the order in which they must be answered.
        settled: Whether the desks have had time: nothing is open, no rollover under way.
        clock_was_set: Whether the clock was put right in between, so that dates may go back.
    """
    accepted = accepted or {}
    desks = {path.name for path in (workspace / 'desks').glob('*') if path.is_dir()}
    faults = list(modes(workspace))
    for desk in sorted(desks | set(accepted)):
        audited = DeskAudit(
            workspace / 'desks' / desk, accepted.get(desk, ()), settled=settled, clock_was_set=clock_was_set
        )
        faults += [Fault(kind, f'{desk}: {what}') for kind, what in audited.faults()]
    return faults


if __name__ == '__main__':
    arguments = [argument for argument in sys.argv[1:] if argument != '--open']
    acknowledged = json.loads(Path(arguments[1]).read_text()) if len(arguments) > 1 else None
    found_all = audit(Path(arguments[0]), acknowledged, settled='--open' not in sys.argv)
    for kind_of_it, what_of_it in found_all:
        print(f'{kind_of_it}: {what_of_it}')  # noqa: T201 - its output
    sys.exit(bool(found_all))
