"""Time in the short run: a few desk-years, the host's clock by itself, and hosts without what tells the zones."""

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import time_walks
from findings import Budget
from host_clock import Host, date_in_india
from hypothesis import given, settings
from hypothesis import strategies as st
from keeper_fakes import Box, Crash, InlineDisk, around
from time_walks import Walk

from trading_agent.clock import INDIA, boundary_after
from trading_agent.errors import BackendError
from trading_agent.routing.turn_runner import Turn

SEED = 'everywhere'


def test_desk_years() -> None:
    """Through steps, suspends, crashes, outages and rollovers by hand a desk loses nothing and does nothing twice."""
    time_walks.run(Budget(rounds=2)).check()


# -- where the host is -----------------------------------------------------------------------------------------


def sessions_of_a_program(folder: Path, zone: str, tz_path: Path | None, *options: str) -> dict[str, int]:
    """Walks in a process of its own; returns how many exchanges each session has."""
    environ = os.environ | {'TZ': zone, 'PYTHONTZPATH': str(tz_path or ''), 'PYTHONPATH': os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, time_walks.__file__, folder, SEED, *options],
        capture_output=True,
        check=False,
        timeout=60,
        env=environ,
    )
    assert done.returncode == 0, done.stderr.decode()
    sessions: dict[str, int] = json.loads(done.stdout)
    return sessions


def test_any_host(tmp_path: Path) -> None:
    """The same days make the same sessions in any zone, and where tz data is missing or damaged."""
    here = Walk(tmp_path / 'here', SEED)
    asyncio.run(here.run())
    damaged, cut = tmp_path / 'damaged' / 'Asia', tmp_path / 'cut' / 'Asia'
    for folder, data in ((damaged, b'no zone at all'), (cut, b'TZif2')):
        folder.mkdir(parents=True)
        (folder / 'Kolkata').write_bytes(data)
    hosts: list[tuple[str, Path | None, list[str]]] = [
        ('Pacific/Kiritimati', None, []),
        ('ODD-24:59:59SUMMER,0/0,J365/25', None, ['--no-tz-data']),
        ('America/St_Johns', damaged.parent, []),
        ('No/Such_Zone', cut.parent, ['--no-tz-data']),
    ]
    with ThreadPoolExecutor(2) as threads:
        found = [
            threads.submit(sessions_of_a_program, tmp_path / str(number), zone, tz_path, *options)
            for number, (zone, tz_path, options) in enumerate(hosts)
        ]
    assert sum(here.sessions().values()) > 20
    for each in found:
        assert each.result() == here.sessions()


@given(st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)), st.integers(0, 719))  # noqa: DTZ001 - of India
def test_boundaries(at: datetime, minutes: int) -> None:
    """Whatever rollover_at is, the date changes at the boundary, by one day, and not a second before."""
    rollover_at = timedelta(minutes=minutes)
    instant = at.replace(microsecond=0, tzinfo=INDIA)
    boundary = boundary_after(instant, rollover_at).timestamp()
    before = date_in_india(instant.timestamp(), rollover_at)
    assert date_in_india(boundary - 1, rollover_at) == before
    assert date_in_india(boundary, rollover_at) == before + timedelta(days=1)


# -- the host's clock ------------------------------------------------------------------------------------------


def eighths(least: float, most: float) -> st.SearchStrategy[float]:
    """Returns spans in seconds that a float holds exactly."""
    return st.integers(int(least * 8), int(most * 8)).map(lambda number: number / 8)


STEPS = st.one_of(eighths(2.125, 400 * 86400.0), eighths(2.125, 120), st.sampled_from([86400.0, 3600.0]))
EVENTS = st.one_of(
    st.tuples(st.just('pass'), st.one_of(eighths(0, 70), eighths(0, 7200), st.sampled_from([59.875, 60.0, 1.0]))),
    st.tuples(st.just('suspend'), eighths(0, 5 * 86400)),
    st.tuples(st.just('step'), st.one_of(STEPS, STEPS.map(lambda size: -size))),
    st.tuples(st.just('slew'), eighths(-0.5, 0.5)),
)
STARTS = st.one_of(
    st.just(datetime(2026, 10, 19, 23, 59, 30, tzinfo=INDIA)),
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=INDIA)),  # noqa: DTZ001
)


@settings(max_examples=400, deadline=None)
@given(STARTS, st.lists(EVENTS, max_size=40), st.integers(0, 719).map(lambda minutes: timedelta(minutes=minutes)))
def test_walks_of_the_host_clock(start: datetime, events: list[tuple[str, float]], rollover_at: timedelta) -> None:
    """However the clock is set, the date is told by the newest setting that lasted a minute, and so never jumps."""
    host = Host(start.timestamp())
    before = host.clock.trusted_date(rollover_at)
    assert before == date_in_india(start.timestamp(), rollover_at)
    for what, amount in events:
        stepped = False
        if what in ('pass', 'suspend'):
            host.booted += amount
        elif what == 'slew':
            host.slew(amount)
        else:
            host.step(amount)
            stepped = True
        was_steady = host.steady
        after = host.clock.trusted_date(rollover_at)
        assert after == host.trusted(rollover_at)
        if was_steady:
            assert after == date_in_india(host.clock.now().timestamp(), rollover_at), 'the true date when steady'
        if stepped:
            assert after == before, 'a step alone never changes the date'
        if after < before:
            assert was_steady, 'back only when a step has lasted'
            assert any(
                later[1] < earlier[1] for earlier, later in zip(host.settings, host.settings[1:], strict=False)
            ) or any(event == 'slew' for event, _ in events)
        before = after


# -- a summary that comes late ---------------------------------------------------------------------------------


@pytest.mark.parametrize('at', range(1, 16))
async def test_a_late_summary_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Killed at any write of it, and gone on with after another day was folded, a day is folded in once."""
    box = Box(tmp_path, disk=InlineDisk())
    box.model.on_review = never_answered
    await box.start()
    await box.turn()
    box.next_day()
    await box.turn()
    box.model.on_review = box.model.review
    writes = 0

    def maybe_die(_: Path) -> None:
        nonlocal writes
        writes += 1
        if writes == at:
            raise Crash

    with monkeypatch.context() as patch:
        for name in time_walks.WRITES:
            around(patch, name, before=maybe_die, after=maybe_die)
        with suppress(Crash):
            await box.keeper.backfill()
    await box.restart()
    box.next_day()
    await box.keeper.roll_over_if_due()
    while await box.keeper.backfill():
        pass
    lessons = ['- lesson of 2026-10-19-1', '- lesson of 2026-10-20-1']
    assert sorted(filter(None, box.memory_text.split('\n'))) == lessons
    assert box.headings() == ['## Session 2026-10-19-1', '## Session 2026-10-20-1']
    assert not (box.path / 'backfill.json').exists()


async def never_answered(_: Turn) -> str:
    """Fails."""
    raise BackendError('down')
