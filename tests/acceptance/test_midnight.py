"""The date boundary in India, met by the real process: idle, asleep, at work, and on a host of another zone."""

import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from file_clock import FileClock
from process import Process, Start, until

DAY = '2026-03-10'
MIDNIGHT = datetime(2026, 3, 10, 18, 30, tzinfo=UTC)
BERLIN = {'TZ': 'Europe/Berlin'}
TWO_DESKS = '[[desks]]\nname = "main"\n[[desks]]\nname = "commodities"\nrollover_at = "05:00"\n'
SLOW = '[backends.slow]\nkind = "offline"\ndelay = "1s"\n[[desks]]\nname = "main"\nbackends = ["slow"]\n'
SECOND_HANGS = SLOW.replace('delay = "1s"', 'hang_every = 2')


def rolled_over(daemon: Process, days: int = 1) -> None:
    """Checks that the desk `main` has rolled over once, from the one day to the one so many days later."""
    next_id = f'{datetime.fromisoformat(DAY).date() + timedelta(days=days)}-1'
    started = daemon.found('session_started', desk='main')
    assert [line['reason'] for line in started] == ['first', 'daily_rollover']
    assert started[1]['session_id'] == next_id
    assert started[1]['previous_session_id'] == f'{DAY}-1'
    for event in ('session_ended', 'rollover_started', 'rollover_finished', 'summary_written'):
        assert [line['session_id'] for line in daemon.found(event, desk='main')] == [f'{DAY}-1']
    files = daemon.files_of()
    assert files.summaries() == [DAY]
    assert files.summary(DAY).count('## Session') == 1
    assert files.state()['session_id'] == next_id


def test_idle(start: Start, tmp_path: Path) -> None:
    """Idle on a host in Berlin it rolls over within 30 s of midnight in India, once; a desk of 05:00 does not."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(minutes=5))
    daemon = start(TWO_DESKS, program=clock.program, environ=BERLIN).ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    clock.sleep_until(MIDNIGHT - timedelta(seconds=1.5))
    assert daemon.desk()['next_boundary'] == '2026-03-10T18:30:00Z'
    daemon.wait_for('session_started', reason='daily_rollover')
    assert timedelta() <= clock.now() - MIDNIGHT < timedelta(seconds=30)
    clock.sleep(timedelta(hours=1))
    assert daemon.send('still there?')['status'] == 'accepted'
    daemon.wait_for('turn_finished', count=2)
    assert daemon.stop() == 0
    rolled_over(daemon)
    assert len(daemon.found('date_changed')) == 1
    assert not daemon.found('rollover_late')
    assert not daemon.found('clock_stepped')
    assert daemon.files_of('commodities').session_ids() == [f'{DAY}-1']


def test_slept_through_three_nights(start: Start, tmp_path: Path) -> None:
    """A host that was suspended for three nights rolls over once, to the day that it is now."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(hours=10))
    daemon = start(program=clock.program).ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    clock.sleep(timedelta(days=3))
    daemon.wait_for('session_started', reason='daily_rollover')
    daemon.send('good morning')
    told = daemon.wait_for('turn_finished', count=2)
    assert told['session_id'] == '2026-03-13-1'
    assert daemon.stop() == 0
    rolled_over(daemon, days=3)
    assert not daemon.found('clock_stepped')
    assert daemon.files_of().session_ids() == [f'{DAY}-1', '2026-03-13-1']


def test_a_turn_runs_at_midnight(start: Start, tmp_path: Path) -> None:
    """A turn that runs at midnight finishes in its old session; one rollover follows, and the next turn is new."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(minutes=5))
    daemon = start(SLOW, program=clock.program).ready()
    daemon.send('the last of the day', id='late')
    daemon.send('the first of the day', id='early')
    daemon.wait_for('turn_started', trigger_id='late')
    clock.sleep_until(MIDNIGHT + timedelta(seconds=1))
    assert daemon.wait_for('turn_finished', trigger_id='late')['session_id'] == f'{DAY}-1'
    assert daemon.wait_for('turn_finished', trigger_id='early')['session_id'] == '2026-03-11-1'
    assert daemon.stop() == 0
    rolled_over(daemon)
    files = daemon.files_of()
    assert [exchange['trigger_id'] for exchange in files.session(f'{DAY}-1')] == ['late']
    (first,) = files.session('2026-03-11-1')
    assert files.summary(DAY).partition('\n\n')[2].strip() in first['trigger_text']
    assert first['trigger_text'].endswith('the first of the day')


def test_the_clock_is_set(start: Start, tmp_path: Path) -> None:
    """Somebody who sets the clock a day forward is told of at once, and the new date counts after a steady minute."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(hours=10))
    daemon = start(program=clock.program).ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    clock.step(timedelta(days=1))
    stepped = daemon.wait_for('clock_stepped')
    assert abs(stepped['step_ms'] - 86_400_000) < 1000
    daemon.send('what day is it?')
    assert daemon.wait_for('turn_finished', count=2)['session_id'] == f'{DAY}-1'
    assert daemon.request('GET', '/v1/status')[1]['clock']['state'] == 'stepped'
    clock.sleep(timedelta(seconds=61))
    daemon.wait_for('session_started', reason='daily_rollover')
    assert daemon.stop() == 0
    rolled_over(daemon)


def test_the_clock_is_set_back(start: Start, tmp_path: Path) -> None:
    """A date behind the session's changes nothing but is told; after ten steady minutes a session of today begins."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(hours=10))
    daemon = start(program=clock.program).ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    clock.step(timedelta(days=-2))
    daemon.wait_for('clock_stepped')
    clock.sleep(timedelta(seconds=61))
    behind = daemon.wait_for('clock_behind')
    assert (behind['clock_date'], behind['trading_date']) == ('2026-03-08', DAY)
    daemon.send('what day is it?')
    assert daemon.wait_for('turn_finished', count=2)['session_id'] == f'{DAY}-1'
    clock.sleep(timedelta(minutes=11))
    started = daemon.wait_for('session_started', reason='clock_corrected')
    assert (started['session_id'], started['previous_session_id']) == ('2026-03-08-1', f'{DAY}-1')
    assert daemon.stop() == 0
    assert daemon.files_of().summaries() == [DAY]
    assert len(daemon.found('clock_behind')) == 1


def test_late(start: Start, tmp_path: Path) -> None:
    """A rollover that is not done two minutes after midnight is told once, with how far it is and what to look at."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(minutes=5))
    daemon = start(SECOND_HANGS, program=clock.program).ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    clock.sleep_until(MIDNIGHT)
    daemon.wait_for('rollover_started')
    assert not daemon.found('rollover_late')
    clock.sleep(timedelta(minutes=2))
    late = daemon.wait_for('rollover_late')
    assert (late['level'], late['session_id'], late['stage']) == ('error', f'{DAY}-1', 'answers')
    assert 120_000 <= late['late_ms'] < 180_000
    assert late['hint']
    daemon.kill()
    again = start(program=clock.program)
    again.wait_for('session_started', reason='daily_rollover')


def test_killed_before_midnight_started_after(start: Start, tmp_path: Path) -> None:
    """Killed the evening before, it resumes, rolls over, and then runs what was cut off in the session of today."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - timedelta(minutes=5))
    daemon = start(SECOND_HANGS, program=clock.program).ready()
    daemon.send('answered', id='answered')
    daemon.send('cut off', id='cut-off')
    daemon.wait_for('turn_started', trigger_id='cut-off')
    daemon.kill()
    clock.sleep_until(MIDNIGHT + timedelta(hours=8))
    again = start(program=clock.program)
    assert again.wait_for('turn_finished')['session_id'] == '2026-03-11-1'
    assert [line['reason'] for line in again.found('session_started')] == ['resumed', 'daily_rollover']
    files = again.files_of()
    assert files.answered() == ['answered', 'cut-off']
    text = files.session('2026-03-11-1')[0]['trigger_text']
    assert text.index('What came before') < text.index('was cut off before it was answered')
    assert text.endswith('\n\ncut off')


def test_real_midnight_under_faketime(start: Start) -> None:
    """With the host's whole time faked and its zone Berlin, the process crosses midnight in India idle, once."""
    faketime = shutil.which('faketime')
    if faketime is None:
        reason = 'faketime is missing (Debian: apt-get install faketime): midnight is not crossed with a faked host'
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail(reason)
        pytest.skip(reason)
    # The library itself: the program `faketime` stays between the test and the daemon and takes its signals.
    command = [faketime, '-f', '+0', 'printenv', 'LD_PRELOAD']
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    fake = {'LD_PRELOAD': library, 'FAKETIME': '@2026-03-10 19:29:52', 'FAKETIME_DONT_FAKE_MONOTONIC': '1'}
    daemon = start(environ={**BERLIN, **fake}).ready()
    assert daemon.found('session_started')[0]['session_id'] == f'{DAY}-1'
    assert daemon.found('session_started')[0]['timestamp'].startswith('2026-03-10T18:29:5')
    daemon.send('hello')
    assert daemon.wait_for('turn_finished')['session_id'] == f'{DAY}-1'
    started = daemon.wait_for('session_started', reason='daily_rollover')
    assert started['timestamp'].startswith('2026-03-10T18:30:')
    daemon.send('good morning')
    assert daemon.wait_for('turn_finished', count=2)['session_id'] == '2026-03-11-1'
    until(lambda: daemon.desk()['queue'] == 0, 'nothing is open')
    assert daemon.stop() == 0
    rolled_over(daemon)
