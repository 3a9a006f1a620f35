"""One damaged desk: opened twice, used and read, and all that is wrong with what came of it."""

import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from auditor import modes
from click.testing import CliRunner
from damage import Damage, spoil
from findings import Findings, Kind
from old_desk import DESK, FIRST, SECOND, THIRD, Opened, open_and_use
from sound_lines import lines_of, read, verdict

from trading_agent.cli.main import cli
from trading_agent.conversation.journal import SessionManager
from trading_agent.events import (
    ComponentFailed,
    DeskParked,
    DeskRestarted,
    StoreDamaged,
    SummaryWritten,
    WriteFailed,
)

HOME = f'desks/{DESK}'
LOG = f'{HOME}/sessions/{THIRD}.jsonl'
TRIGGERS = f'{HOME}/triggers.jsonl'

NOT_ALWAYS_THERE: Mapping[str, Any] = {
    f'{HOME}/paused.json': {'at': '2026-03-10T09:00:00Z', 'by': 'asha', 'reason': 'lunch', 'version': 1},
    'disabled-backends.json': {'version': 1, 'backends': {'gpt': {'at': '2026-03-10T09:00:00Z', 'by': 'asha'}}},
    'trading-agent.lock': {'pid': 1, 'started_at': '2026-03-10T09:00:00Z', 'run_id': 'x', 'control_socket': None},
}
"""Files that are made where they are damaged, as they are when they are sound."""

READING = [
    ['sessions', DESK],
    ['summaries', DESK],
    ['show', DESK, THIRD, '--journal'],
    ['show', DESK, SECOND],
    ['show', DESK, SECOND, '--journal'],
    ['show', DESK, FIRST, '--journal', '--json'],
    ['why', DESK, f'{THIRD}-trigger-2'],
    ['why', DESK, 'later', '--json'],
    ['export', DESK, '--all'],
    ['show', DESK, SECOND, '--json'],
    ['sessions', DESK, '--json'],
    ['search', 'tell me'],
    ['index', 'status'],
    ['index', 'check'],
    ['memory', DESK],
    ['memory', 'diff', DESK, SECOND],
    ['skills', DESK],
]
"""What is asked of the command line."""


class Case:
    """One damaged desk.

    Args:
        base: The workspace as it was made.
        workspace: Where this one is.
        done: What is done to it.
        findings: What comes of it.
        where: What repeats it.
    """

    def __init__(self, base: Path, workspace: Path, done: Sequence[Damage], findings: Findings, where: str) -> None:
        self._base, self._workspace, self._done = base, workspace, done
        # Which it is, the damage says: each kind of it comes to each of them.
        self._backend = 'offline' if sum(map(len, (damage.path + damage.what for damage in done))) % 2 else 'model'
        self._findings = findings
        self._where = where

    def _add(self, kind: Kind, what: str) -> None:
        self._findings.add(kind, f'{self._where}: {what}')

    def run(self, *, thoroughly: bool = True) -> None:
        """Damages the desk, opens it twice, reads it, and notes what is wrong."""
        self.prepare()
        self._lines = {
            path: [(number, line, verdict(path, line, self._before(path))) for number, line in lines_of(data)]
            for path, data in self._now.items()
            if data is not None and path.endswith('.jsonl')
        }
        first = self._opened('after')
        if first is None or first.trouble:
            return
        self._told_first = first.told
        self._check_told(first)
        self._check_bytes()
        self._check_remembered(first)
        self._check_triggers(first)
        if thoroughly:
            self._check_readers()
            second = self._opened('again')
            if second is not None:
                news = self._told(second) - self._told(first)
                for path, line in sorted(news, key=str):
                    self._add('broken', f'the second start tells new damage: {path}, line {line}')
        for fault in modes(self._workspace):
            self._add(*fault)

    def prepare(self) -> None:
        """Makes the damaged desk."""
        shutil.copytree(self._base, self._workspace)
        for path in {damage.path for damage in self._done}.intersection(NOT_ALWAYS_THERE):
            (self._workspace / path).write_text(json.dumps(NOT_ALWAYS_THERE[path]))
            (self._workspace / path).chmod(0o600)
        self._now = spoil(self._workspace, self._done)

    def _before(self, path: str) -> Counter[bytes]:
        source = self._base / path
        return Counter(source.read_bytes().split(b'\n') if source.exists() else [])

    def _opened(self, name: str) -> Opened | None:
        try:
            opened = anyio.run(open_and_use, self._workspace, name, self._backend)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self._add('blocked', f'{name}: {type(error).__name__}: {error}')
            return None
        newer = 'install the newer version' in opened.reason + opened.trouble
        if opened.trouble and not newer:
            self._add('blocked', f'{name}: {opened.trouble}')
        for event in opened.told:
            if isinstance(event, DeskRestarted | ComponentFailed | WriteFailed) or (
                isinstance(event, DeskParked) and not newer
            ):
                self._add('broken', f'{name}: {event}')
        for record in opened.logged:
            if record.levelno >= logging.ERROR:
                self._add('broken', f'{name}: {record.name}: {record.getMessage()} {record.exc_info}')
        return opened

    # -- told --------------------------------------------------------------------------------------------------

    def _told(self, opened: Opened) -> set[tuple[str, int | None]]:
        """Returns the files, and the lines in them, that were told as damaged."""
        told = {(event.path, event.line) for event in opened.told if isinstance(event, StoreDamaged)}
        for record in opened.logged:
            logged = re.fullmatch(r'(\S+), line (\d+|None) cannot be read: .*', record.getMessage(), re.DOTALL)
            if logged is not None:
                told.add((logged[1], None if logged[2] == 'None' else int(logged[2])))
        root = f'{self._workspace}/'
        return {(re.sub(r'\.damaged-.*', '', path.removeprefix(root)), line) for path, line in told}

    def _check_told(self, opened: Opened) -> None:
        told = self._told(opened)
        for path, lines in self._lines.items():
            for number, line, found in lines:
                if found == 'damaged' and (path, number) not in told and self._is_read(path):
                    self._add('silent', f'{path}, line {number} is damaged and not told: {line[:80]!r}')
                if found == 'sound' and (path, number) in told:
                    self._add('lost', f'{path}, line {number} is sound and told as damaged: {line[:80]!r}')
        others = {f'{HOME}/sessions/state.json', f'{HOME}/sessions/.session-ids'}  # they know that there was one
        if self._now.get(LOG, b'') is None and (LOG, None) not in told and not others.intersection(self._now):
            self._add('silent', f'{LOG} is missing and not told')
        for path, data in self._now.items():
            is_damaged = path.endswith('.json') and data is not None and self._unreadable(path, data)
            if is_damaged and self._is_read(path) and (path, None) not in told:
                self._add('silent', f'{path} is damaged and not told')

    def _is_read(self, path: str) -> bool:
        """Whether what is done with the desk has it read this file."""
        older = path.startswith((f'{HOME}/triggers/', f'{HOME}/sessions/2', f'{HOME}/journal/', f'{HOME}/notes/'))
        is_reviewed = self._base.parent.name == 'summary'
        if '/notes/' in path or '/memory_history/' in path:
            return is_reviewed if THIRD in path else '/memory_history/' in path and self._backend == 'model'
        return not older or THIRD in path

    def _is_open(self, path: str, number: int) -> bool:
        """Whether a line has no end: it may be being written, as far as a reader knows."""
        return not (self._now[path] or b'').endswith(b'\n') and number == self._lines[path][-1][0]

    def _unreadable(self, path: str, data: bytes) -> bool:
        try:
            document = read(data.removeprefix(b'\xef\xbb\xbf'))
        except (ValueError, RecursionError):
            return True
        return not isinstance(document, list if path.endswith('untold.json') else dict)

    # -- bytes -------------------------------------------------------------------------------------------------

    def _check_bytes(self) -> None:
        for path, data in self._now.items():
            if (
                data
                and path != 'trading-agent.lock'
                and not any(self._is_kept(path, data, found) for found in self._candidates(path))
            ):
                self._add('lost', f'the bytes of {path} are nowhere')

    def _candidates(self, path: str) -> Iterator[Path]:
        here = self._workspace / path
        yield here
        yield from here.parent.glob(f'{here.name}.damaged-*')
        if path == TRIGGERS:
            yield from here.parent.glob('triggers/*.jsonl')
        if here.name == 'Memory.md':
            yield from here.parent.glob('memory_history/*.md')
        if here.parent.name == '.proposed':
            yield here.parent / 'done' / here.name

    def _is_kept(self, path: str, data: bytes, found: Path) -> bool:
        if not found.exists():
            return path.endswith('.json') and not self._unreadable(path, data)
        kept = found.read_bytes()
        if kept == data:
            return True
        if path.endswith(('.jsonl', '.session-ids')):
            return kept.startswith(data) and (data.endswith(b'\n') or kept[len(data) :][:1] == b'\n')
        if path.endswith('.json'):
            return not self._unreadable(path, data)
        return '/summaries/' in path and self._is_made_again(data, kept)

    def _is_made_again(self, data: bytes, kept: bytes) -> bool:
        """Whether a day's summary has all that it had, but for the section of a session that was summed up again."""
        anew = {event.session_id for event in self._told_first if isinstance(event, SummaryWritten)}
        try:
            text = data.decode('utf-8-sig')
        except UnicodeDecodeError:
            return False
        there = {line.strip() for line in kept.decode().replace('\r', '\n').split('\n')}
        missing = [line for line in text.replace('\r', '\n').split('\n') if line.strip() not in there]
        return not missing or any(f'## Session {session_id}' in text for session_id in anew)

    # -- what the desk knows -----------------------------------------------------------------------------------

    def _check_remembered(self, opened: Opened) -> None:
        if opened.session is None:
            return
        path = f'{HOME}/sessions/{opened.session}.jsonl'
        if path not in self._lines:
            return
        wanted = [line for _, line, found in self._lines[path] if found == 'sound']
        known = Counter(exchange.answer for exchange in opened.remembered)
        for line in wanted:
            answer = read(line)['answer'].encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
            if not known[answer]:
                self._add('lost', f'an exchange of {opened.session} is not remembered: {line[:80]!r}')
            known[answer] -= 1

    def _check_triggers(self, opened: Opened) -> None:
        exchanges = self._exchanges(self._workspace)
        before = self._exchanges(self._base)
        for trigger_id, count in exchanges.items():
            if count > max(1, before[trigger_id], self._doubled(trigger_id)):
                self._add('twice', f'{trigger_id} has {count} exchanges')
        current = self._records(self._workspace / TRIGGERS)
        still_open = {each['trigger']['id'] for each in current if each['type'] == 'accepted'}
        closed = {each['id'] for each in current if each['type'] == 'closed'}
        accepted = self._good_triggers()
        for trigger_id in accepted:
            if trigger_id not in exchanges and trigger_id not in still_open | closed:
                self._add('lost', f'{trigger_id} was accepted, and is nowhere')
        for trigger_id in ('waits', 'after-1', 'after-3'):
            if trigger_id in [*accepted, 'after-1', 'after-3'] and exchanges[trigger_id] != 1:
                self._add('lost', f'{trigger_id} has {exchanges[trigger_id]} exchanges')
        sections = re.findall(rb'^## Session (\S+)', self._summary_bytes(), re.MULTILINE)
        for session_id, count in Counter(sections).items():
            if count > 1 and not any('summaries' in path for path in self._now):
                self._add('twice', f'{session_id!r} has {count} sections')

    def _summary_bytes(self) -> bytes:
        return b'\n'.join(path.read_bytes() for path in (self._workspace / HOME).glob('sessions/summaries/*.md'))

    def _doubled(self, trigger_id: str) -> int:
        """How often the damage itself has put an exchange into the logs."""
        return sum(
            line.count(f'"trigger_id":"{trigger_id}"'.encode(errors='replace'))
            for path, lines in self._lines.items()
            if '/sessions/' in path
            for _, line, _ in lines
        )

    def _good_triggers(self) -> list[str]:
        path = self._base / TRIGGERS
        lines = (
            [line for _, line, found in self._lines[TRIGGERS] if found == 'sound'] if TRIGGERS in self._lines else None
        )
        if TRIGGERS in self._now and lines is None:
            return []
        records = map(read, lines) if lines is not None else self._records(path)
        return [record['trigger']['id'] for record in records if record['type'] == 'accepted']

    def _records(self, path: Path) -> list[dict[str, Any]]:
        found = []
        for _, line in lines_of(path.read_bytes()):
            try:
                record = read(line)
                found += (
                    [record]
                    if record['type'] in ('accepted', 'closed')
                    and record.get('id', record.get('trigger', {}).get('id'))
                    else []
                )
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
                continue
        return found

    def _exchanges(self, workspace: Path) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in (workspace / HOME / 'sessions').glob('*.jsonl'):
            for _, line in lines_of(path.read_bytes()):
                try:
                    exchange = read(line)
                    found[str(exchange['trigger_id'])] += 1
                except (ValueError, RecursionError, KeyError, TypeError):
                    continue
        return found

    # -- other readers -----------------------------------------------------------------------------------------

    def _check_readers(self) -> None:
        outputs = ''
        for arguments in READING:
            result = CliRunner().invoke(cli, ['--workspace', str(self._workspace), *arguments])
            outputs += result.output
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                self._add('broken', f'{arguments} raises {type(result.exception).__name__}: {result.exception}')
        for path, lines in self._lines.items():
            if not path.startswith((f'{HOME}/sessions/', f'{HOME}/journal/')):
                continue
            if not (self._workspace / path).read_bytes().startswith(self._now[path] or b''):
                continue  # told and set aside at the start
            for number, line, found in lines:
                if found != 'damaged' or self._is_open(path, number):
                    continue
                if f'{path}, line {number} ' not in outputs:
                    self._add('silent', f'no command tells of {path}, line {number}: {line[:80]!r}')
        try:
            manager = SessionManager(self._workspace / HOME / 'journal')
            for session in manager.list_sessions():
                manager.load_session(Path(session['path']).stem)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self._add('broken', f'SessionManager raises {type(error).__name__}: {error}')
