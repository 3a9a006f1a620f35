"""What desks acknowledged and told of a workspace: all that must be there, whatever becomes of the machine."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from auditor import lines_of
from findings import Fault
from writers import DESKS, MORNING, Line


@dataclass
class Told:
    """What was told of a workspace: all that must be there after every power cut.

    Attributes:
        accepted: The ids of the triggers that were acknowledged, by desk, in order.
        again: Those that were offered and not acknowledged.
        answered: The triggers that were told as answered, with the desk and the session.
        sessions: The sessions that were told to have begun.
        summaries: The sessions whose summary was told to be written.
        memories: The sessions whose fold into Memory.md was told.
        now: What time it was last.
        number: The number of the next trigger.
        trouble: What desks told that is not to happen.
        allowed: The events that may well happen, since more fails than the power.
        refused: The triggers that were refused since the disk could not take them.
    """

    accepted: dict[str, list[str]] = field(default_factory=lambda: {desk: [] for desk in DESKS})
    again: dict[str, list[str]] = field(default_factory=lambda: {desk: [] for desk in DESKS})
    answered: dict[str, tuple[str, str]] = field(default_factory=dict)
    sessions: set[tuple[str, str]] = field(default_factory=set)
    summaries: set[tuple[str, str]] = field(default_factory=set)
    memories: set[tuple[str, str]] = field(default_factory=set)
    now: str = MORNING.isoformat()
    number: int = 0
    trouble: list[Fault] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()
    refused: set[str] = field(default_factory=set)

    def take(self, line: Line, *, cut: bool) -> None:
        """Takes note of a line. After the cut only what was offered counts.

        A sync that the shutdown came into may return as if all were well: a process that lost its power does not see
        that, and this one may.
        """
        if cut and line.get('did') not in ('send', 'pass'):
            return
        name = line.get('did') or line.get('event')
        if 'did' in line:
            known = self._did(line)
        elif line.get('line') is not None and name == 'store_damaged':
            known = True  # what was not synced and not acknowledged may be torn, and that is told
        else:
            known = self._happened(line)
        if not known and name not in self.allowed:
            self.trouble.append(Fault('broken', f'{line}'))

    def _did(self, line: Line) -> bool:
        """Takes note of what was done with desks; returns whether that is as it should be."""
        match line:
            case {'did': 'send', 'desk': desk, 'trigger_id': trigger_id}:
                self.number += 1
                if trigger_id not in self.again[desk]:
                    self.again[desk].append(trigger_id)
            case {'did': 'receive', 'desk': desk, 'trigger_id': trigger_id, 'status': 'accepted' | 'duplicate'}:
                self.again[desk].remove(trigger_id)
                self.accepted[desk].append(trigger_id)
            case {'did': 'receive', 'trigger_id': trigger_id, 'reason': 'storage'} if self.allowed:
                self.refused.add(trigger_id)
            case {'did': 'pass', 'now': now}:
                self.now = now
            case {'did': 'begin'}:
                pass
            case _:
                return False
        return True

    def _happened(self, line: Line) -> bool:
        """Takes note of an event; returns whether it is one that may happen."""
        about = (line.get('desk', ''), line.get('session_id', ''))
        match line:
            case {'event': 'turn_finished', 'trigger_id': trigger_id}:
                if trigger_id in self.answered:
                    self.trouble.append(Fault('twice', f'{trigger_id} was answered twice'))
                self.answered[trigger_id] = about
            case {'event': 'store_damaged', 'desk': desk, 'error': 'the session state is missing'}:
                # The very first start may be cut off between the session's log and the state that names it.
                return all(named != desk for named, _ in self.sessions)
            case {'event': 'session_started'}:
                self.sessions.add(about)
            case {'event': 'summary_written'}:
                self.summaries.add(about)
            case {'event': 'memory_updated'}:
                self.memories.add(about)
            case _:
                return False
        return True

    def faults(self, workspace: Path) -> Iterator[Fault]:
        """Yields what was told and is not there."""
        yield from self.trouble
        self.trouble = []
        folders = {desk: workspace / 'desks' / desk for desk in DESKS}
        for trigger_id, (desk, session_id) in self.answered.items():
            exchanges = lines_of(folders[desk] / 'sessions' / f'{session_id}.jsonl')
            if not any(line and line.get('trigger_id') == trigger_id for _, line in exchanges):
                yield Fault('lost', f'{trigger_id} was told as answered in {session_id}, which has no exchange of it')
        for desk, session_id in self.sessions:
            if not (folders[desk] / 'sessions' / f'{session_id}.jsonl').exists():
                yield Fault('lost', f'{desk}: {session_id} was told to have begun, and has no log')
        for desk, session_id in self.summaries:
            path = folders[desk] / 'sessions' / 'summaries' / f'{session_id[:10]}.md'
            if f'## Session {session_id}' not in (path.read_text() if path.exists() else ''):
                yield Fault('lost', f'{desk}: the summary of {session_id} was told to be written, and is not there')
        for desk, session_id in self.memories:
            if not (folders[desk] / 'memory_history' / f'{session_id}.md').exists():
                yield Fault('lost', f'{desk}: what Memory.md was before the fold of {session_id} is not there')
