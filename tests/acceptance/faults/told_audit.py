"""Audits what a desk's daemons told of themselves, life after life, against its files: nothing mended in silence."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from auditor import Line, lines_of
from findings import Fault

_OF_A_ROLLOVER = {'daily_rollover', 'manual', 'clock_corrected'}
_NEVER = {'desk_parked', 'desk_restarted', 'component_failed', 'write_failed', 'clock_behind', 'clock_stepped', 'log'}
"""What no kill may lead to; `log` is what libraries log, from warnings on."""


def lines_in(log: Path) -> tuple[list[Line], list[bytes]]:
    """Returns the lines of a log, and what stands in it that is none; a kill may have torn the last one."""
    read = lines_of(log)
    odd = [raw for raw, line in read[:-1] if line is None]
    return [line for _, line in read if line is not None], odd


class ToldAudit:
    """What the daemons of one workspace told.

    Args:
        workspace: The workspace.
    """

    def __init__(self, workspace: Path) -> None:
        self._desks = workspace / 'desks'
        self._torn: dict[Path, bytes] = {}
        self._reasons: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._following: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.torn_tails = 0

    def after_death(self, log: Path) -> Iterator[Fault]:
        """Yields what is wrong in the log of a daemon that has just ended, and looks at what it left."""
        lines, odd = lines_in(log)
        for raw in odd:
            yield Fault('broken', f'it wrote {raw[:300]!r}')
        for line in lines:
            yield from self._of_line(line)
        started = {line.get('desk') for line in lines if line['event'] == 'desk_started'}
        for path in [path for path in self._torn if _read_by_a_start(path)]:
            if path.relative_to(self._desks).parts[0] in started:
                del self._torn[path]
                yield Fault('silent', f'{path.relative_to(self._desks)} had a torn line, which nobody was told')
        self._look()

    def _of_line(self, line: Line) -> Iterator[Fault]:
        desk, event = line.get('desk', ''), line['event']
        if event in _NEVER:
            yield Fault('blocked' if event == 'desk_parked' else 'broken', f'it told {json.dumps(line)[:600]}')
        elif event == 'store_damaged':
            self._torn.pop(Path(line['path']), None)
        elif event == 'session_started':
            self._reasons[desk, line['session_id']].add(line['reason'])
            if line.get('previous_session_id'):
                self._following[desk, line['previous_session_id']].add(line['session_id'])

    def _look(self) -> None:
        """Remembers the files that end in a part of a line."""
        for path in self._desks.rglob('*.jsonl'):
            *_, last = path.read_bytes().rsplit(b'\n', 1)
            if last:
                try:
                    json.loads(last)
                except ValueError:
                    self.torn_tails += path not in self._torn
                    self._torn[path] = last

    # -- in the end ------------------------------------------------------------------------------------------------

    def in_the_end(self, manual: Mapping[str, int]) -> Iterator[Fault]:
        """Yields what is wrong with the sessions.

        Args:
            manual: How often somebody asked for a rollover, by desk.
        """
        for path, torn in self._torn.items():
            if torn + b'\n' in path.read_bytes():
                yield Fault('silent', f'{path.relative_to(self._desks)} had a torn line, which was closed untold')
        for (desk, session_id), following in self._following.items():
            if len(following) > 1:
                yield Fault('twice', f'{desk}: {session_id} was followed by {sorted(following)}')
        for folder in sorted(self._desks.iterdir()):
            sessions = sorted(path.stem for path in (folder / 'sessions').glob('*.jsonl'))
            sessions.sort(key=lambda session_id: (session_id[:10], int(session_id[11:])))
            yield from self._of_sessions(folder.name, sessions, manual.get(folder.name, 0))
            for session_id in sessions:
                for fault in _of_reviews(folder / 'journal' / f'{session_id}.jsonl'):
                    yield Fault(fault.kind, f'{folder.name}: {fault.what}')

    def _of_sessions(self, desk: str, sessions: list[str], manual: int) -> Iterator[Fault]:
        reasons = [self._reasons[desk, session_id] & _OF_A_ROLLOVER for session_id in sessions]
        for session_id, why in list(zip(sessions, reasons, strict=True))[1:]:
            if len(why) != 1:
                yield Fault('silent', f'{desk}: {session_id} was begun, and told as {sorted(why)}')
        if sum('manual' in why for why in reasons) > manual:
            yield Fault('twice', f'{desk}: more manual rollovers than the {manual} that were asked for')
        by_boundary = [session_id for session_id, why in zip(sessions, reasons, strict=True) if 'daily_rollover' in why]
        by_date = Counter(session_id[:10] for session_id in [*by_boundary, *sessions[:1]])
        for day, times in by_date.items():
            if times > 1:
                yield Fault('twice', f'{desk}: {times} sessions of {day} were begun by its boundary')


def _read_by_a_start(path: Path) -> bool:
    """Whether a desk reads such a file as it starts; others are read, and mended, when they are next written to."""
    return path.parent.name in ('sessions', 'journal') or path.name == 'triggers.jsonl'


def _of_reviews(journal: Path) -> Iterator[Fault]:
    """Yields the questions of a journal that were answered twice."""
    asked: dict[str, str] = {}
    answered: Counter[str] = Counter()
    begun: set[str] = set()
    for line in _said(journal):
        turn = str(line.get('turn_id', ''))
        if line['type'] == 'turn_started' and line.get('purpose') == 'review':
            begun.add(turn)
        elif line['type'] == 'message' and turn in begun:
            asked.setdefault(turn, str(line['message']['content']))
        elif (line['type'], line.get('outcome')) == ('turn_finished', 'answered') and turn in begun:
            answered[asked.get(turn, turn)] += 1
    for question, times in answered.items():
        if times > 1:
            yield Fault('twice', f'{journal.stem}: a model was asked {times} times: {question[:120]!r}')


def of_effects(effects: Path, workspace: Path) -> Iterator[Fault]:
    """Yields what was done twice, what was answered as done and is not, and what is unknown and was not told.

    Args:
        effects: The file that each thing done is written to, by the id of its trigger.
        workspace: The workspace, whose desk `orders` does them.
    """
    folder = workspace / 'desks' / 'orders'
    done = Counter(effects.read_text().split() if effects.exists() else [])
    yield from (Fault('twice', f'{each} was acted upon {times} times') for each, times in done.items() if times > 1)
    answered = [line['trigger_id'] for path in (folder / 'sessions').glob('*.jsonl') for line in _said(path)]
    for trigger_id in answered:
        if not trigger_id.startswith('unknown-') and trigger_id not in done:
            yield Fault('lost', f'{trigger_id} was answered as done, and is not')
    unknown = outcomes(folder, 'unknown')
    told = sum(trigger_id.startswith('unknown-') for trigger_id in answered)
    if told != len(unknown):
        yield Fault('silent', f'{sorted(unknown)} have unknown outcomes, and {told} were told to the desk')


def outcomes(folder: Path, outcome: str) -> set[str]:
    """Returns the ids of a desk's triggers that were closed so."""
    paths = [*(folder / 'triggers').glob('*.jsonl'), folder / 'triggers.jsonl']
    return {line['id'] for path in paths for line in _said(path) if line.get('outcome') == outcome}


def _said(path: Path) -> list[Line]:
    return [line for _, line in lines_of(path) if line is not None]
