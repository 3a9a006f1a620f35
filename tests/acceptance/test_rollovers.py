"""A rollover is killed at every moment, and asked for by everybody at once: it is done whole, and done once."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from desk_files import DeskFiles, Line
from file_clock import FileClock
from process import DEADLINE, Process, Start, clean_environ, unix_request

from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config
from trading_agent.daemon.daemon import Daemon
from trading_agent.trigger import Trigger

DAY, NEXT_DAY = '2026-03-10', '2026-03-11'
SESSION, NEXT_SESSION = f'{DAY}-1', f'{NEXT_DAY}-1'
STAGES = ('answers', 'summary', 'memory', 'skills', 'session', 'announced')
AT_ONCE = 4


async def make_session(workspace: Path) -> None:
    """Makes a workspace with a session of three exchanges."""
    clock = ManualClock(datetime(2026, 3, 10, 10, tzinfo=INDIA))
    async with Daemon(Config(workspace=workspace), clock, faces=False) as daemon:
        for number in range(3):
            text = f'Remember: never sell ABC below {number + 100}.'
            await daemon.bus.send(Trigger(text, 'main', id=f'told-{number}', received_at=clock.now()))
        await daemon.supervisor.settled()


def kill_rollovers(template: Path, target: Path) -> list[Line]:
    """Runs the script that kills rollovers; returns what it tells of each moment."""
    target.mkdir()
    script = Path(__file__).with_name('killed_rollovers.py')
    done = subprocess.run(
        [sys.executable, script, template, target, DAY],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE * 6,
        env=clean_environ(),
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split('\n') if line]


def events_of(workspace: Path) -> tuple[list[Line], list[Line]]:
    """Returns what the killed daemon published, and what the one after it did."""
    lines = [json.loads(line) for line in Path(f'{workspace}.events').read_bytes().split(b'\n') if line]
    cut = lines.index(None) if None in lines else len(lines)
    return lines[:cut], lines[cut + 1 :]


def check_rolled_over(workspace: Path, whole: Path) -> None:
    """Checks that a workspace holds one whole rollover, the same as one that nothing disturbed."""
    files, expected = DeskFiles(workspace / 'desks' / 'main'), DeskFiles(whole / 'desks' / 'main')
    assert files.session_ids() == [SESSION, NEXT_SESSION]
    assert files.state()['session_id'] == NEXT_SESSION
    assert files.summaries() == [DAY]
    assert files.summary(DAY) == expected.summary(DAY)
    assert files.summary(DAY).count(f'## Session {SESSION}\n') == 1
    assert (files.folder / 'Memory.md').read_text() == (expected.folder / 'Memory.md').read_text()
    assert [path.name for path in (files.folder / 'memory_history').glob('*.md')] == [f'{SESSION}.md']
    assert [path.name for path in (files.folder / 'triggers').iterdir()] == [f'{SESSION}.jsonl']
    assert files.session(SESSION) == expected.session(SESSION)
    assert not (files.folder / 'sessions' / 'rollover.json').exists()
    assert not list(files.folder.rglob('.*.tmp'))


def check_told(first: Sequence[Line], second: Sequence[Line], stage: str | None) -> None:
    """Checks that the new session was told, and that the second daemon began at the stage where the first was cut."""
    started = [line for line in (*first, *second) if line['event'] == 'session_started']
    told = [line for line in started if line['session_id'] == NEXT_SESSION]
    assert told[0]['reason'] == 'daily_rollover'
    assert told[0]['previous_session_id'] == SESSION
    assert 'first' not in [line['reason'] for line in started]
    begun = [line['stage'] for line in second if line['event'] == 'rollover_started']
    summaries = [line['quality'] for line in second if line['event'] == 'summary_written']
    folds = [line for line in second if line['event'] == 'memory_updated']
    if stage is None:
        # Not begun yet, or done.
        assert begun in ([], ['answers'])
        return
    done = STAGES.index(stage)
    # A session that was saved already is only announced.
    assert begun == [stage] or (not begun and stage in ('session', 'announced'))
    assert summaries == (['full'] if done <= STAGES.index('summary') else [])
    assert len(folds) <= (done <= STAGES.index('memory'))


async def test_killed_at_every_moment(start: Start, tmp_path: Path) -> None:
    """A rollover killed before any of its calls that change a file is gone on with: nothing is lost or done twice."""
    await make_session(tmp_path / 'template')
    moments = kill_rollovers(tmp_path / 'template', tmp_path / 'killed')
    whole = tmp_path / 'killed' / str(moments.pop()['moment'])
    assert {moment['stage'] for moment in moments} == {None, *STAGES}
    left: list[tuple[Path, str | None]] = []
    for moment in moments:
        workspace = tmp_path / 'killed' / str(moment['moment'])
        if moment['call'].startswith('os.'):
            check_told(*events_of(workspace), moment['stage'])
            check_rolled_over(workspace, whole)
        else:
            left.append((workspace, moment['stage']))
    assert len(left) > len(STAGES)
    clock = FileClock(tmp_path / 'clock', datetime(2026, 3, 11, 0, 5, tzinfo=INDIA))
    # The others are gone on with by the ordinary process, a few side by side.
    for batch in (left[place : place + AT_ONCE] for place in range(0, len(left), AT_ONCE)):
        daemons = [start(workspace=workspace, program=clock.program) for workspace, _ in batch]
        for daemon, (workspace, stage) in zip(daemons, batch, strict=True):
            check_process(daemon.ready())
            daemon.kill()
            check_told(events_of(workspace)[0], daemon.lines, stage)
            check_rolled_over_and_on(workspace, whole)


def check_process(daemon: Process) -> None:
    """Checks that the ordinary process is in the new session, and answers."""
    assert daemon.send('good morning', id='morning')['status'] == 'accepted'
    assert daemon.wait_for('turn_finished')['session_id'] == NEXT_SESSION
    assert not daemon.found('store_damaged')
    assert not daemon.found('desk_restarted')
    reasons = [line['reason'] for line in daemon.found('session_started')]
    assert reasons in (['resumed'], ['daily_rollover'], ['resumed', 'daily_rollover'])


def check_rolled_over_and_on(workspace: Path, whole: Path) -> None:
    """Checks the rollover, and that the first message of the new session carries what came before."""
    check_rolled_over(workspace, whole)
    files = DeskFiles(workspace / 'desks' / 'main')
    (first,) = files.session(NEXT_SESSION)
    assert files.summary(DAY).partition('\n\n')[2].strip() in first['trigger_text']
    assert first['trigger_text'].endswith('good morning')


async def test_everybody_at_once(tmp_path: Path) -> None:
    """The boundary, five persons over HTTP and a trigger at the same moment: one rollover, and its summary is told."""
    clock = ManualClock(datetime(2026, 3, 10, 23, 59, 59, tzinfo=INDIA))
    backend = Backend(kind='offline', options={'delay': '300ms'})
    workspace = tmp_path / 'ws'
    async with Daemon(Config(workspace=workspace, backends={'offline': backend}), clock) as daemon:
        await daemon.bus.send(Trigger('Remember: never sell ABC.', 'main', id='evening'))
        await daemon.supervisor.settled()
        clock.advance(timedelta(seconds=1))
        send = daemon.bus.send(Trigger('good morning', 'main', id='morning'))
        ask = partial(unix_request, daemon.socket_path, 'POST', '/v1/desks/main/rollover')
        calls = [asyncio.to_thread(ask) for _ in range(5)]
        receipt, *answers = await asyncio.gather(send, *calls)
        await daemon.supervisor.settled()
    assert receipt.status == 'accepted'
    assert [(status, answer['session_id']) for status, answer in answers] == [(200, NEXT_SESSION)] * 5
    files = DeskFiles(workspace / 'desks' / 'main')
    assert files.session_ids() == [SESSION, NEXT_SESSION]
    assert files.summaries() == [DAY]
    assert files.summary(DAY).count('## Session') == 1
    check_first(files)


def check_first(files: DeskFiles) -> None:
    """Checks that the new session has one exchange, which carries the summary."""
    (first,) = files.session(NEXT_SESSION)
    assert first['trigger_id'] == 'morning'
    assert files.summary(DAY).partition('\n\n')[2].strip() in first['trigger_text']


def test_five_persons_at_once(start: Start) -> None:
    """Five `rollover` commands at once over a busy desk: the running turn ends in its session, and one rolls over."""
    config = '[backends.slow]\nkind = "offline"\ndelay = "300ms"\n[[desks]]\nname = "main"\nbackends = ["slow"]\n'
    daemon = start(config).ready()
    daemon.send('the last one', id='last')
    daemon.wait_for('turn_started')

    async def everybody() -> list[tuple[int, Any]]:
        calls = [asyncio.to_thread(daemon.request, 'POST', '/v1/desks/main/rollover') for _ in range(5)]
        return await asyncio.gather(*calls)

    answers = asyncio.run(everybody())
    assert [status for status, _ in answers] == [200] * 5
    (began,) = daemon.found('session_started', reason='manual')
    assert {answer['session_id'] for _, answer in answers} == {began['session_id']}
    files = daemon.files_of()
    assert [len(files.session(session_id)) for session_id in files.session_ids()] == [1, 0]
    assert daemon.desk()['session_id'] == began['session_id']
    assert daemon.cli('rollover', 'main').stdout.startswith('main: nothing to do')


def test_no_backend_at_midnight(start: Start, tmp_path: Path) -> None:
    """With no backend to ask, a session is rolled over at once by its own words; the full summary is told later."""
    clock = FileClock(tmp_path / 'clock', datetime(2026, 3, 10, 23, 55, tzinfo=INDIA))
    daemon = start(program=clock.program).ready()
    daemon.send('Remember: never sell ABC.')
    daemon.wait_for('turn_finished')
    assert daemon.stop() == 0
    clock.sleep(timedelta(hours=8))
    failing = '[backends.bad]\nkind = "offline"\nfail_every = 1\n[[desks]]\nname = "main"\nbackends = ["bad"]\n'
    daemon = start(f'heartbeat_every = "1s"\n{failing}', program=clock.program)
    assert daemon.wait_for('summary_written')['quality'] == 'degraded'
    assert daemon.wait_for('rollover_finished')['next_session_id'] == NEXT_SESSION
    assert daemon.wait_for('daemon_heartbeat')['summaries_owed'] == 1
    files = daemon.files_of()
    assert files.summary(DAY).startswith(f'## Session {SESSION} (degraded)\n')
    assert 'never sell ABC' in files.summary(DAY)
    assert daemon.stop() == 0
    daemon = start(program=clock.program)
    assert daemon.wait_for('summary_written')['quality'] == 'backfilled'
    daemon.wait_for('memory_updated')
    daemon.send('good morning')
    daemon.wait_for('turn_finished')
    assert files.summary(DAY).startswith(f'## Session {SESSION}\n')
    assert files.summary(DAY).count('## Session') == 1
    assert files.summary(DAY).partition('\n\n')[2].strip() in files.session(NEXT_SESSION)[0]['trigger_text']
