"""How an event looks: in words on a terminal, as `name=value` in a pipe."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from trading_agent.cli.event_view import in_fields, in_words, print_event, short_id
from trading_agent.event_catalog import event_types
from trading_agent.events import (
    ConfigRejected,
    DaemonHeartbeat,
    DeskPaused,
    DiskLow,
    Event,
    ModelCallFailed,
    SessionStarted,
    Stamped,
    TriggerClosed,
    TurnFinished,
    TurnOutput,
    TurnStarted,
)
from trading_agent.logs import log_record

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)
LONG_ID = '18eca61dae92353b-db04f55f6ce3'


def told(event: Event, *, whole: bool = False) -> str:
    """Returns an event in words."""
    return in_words(log_record(Stamped(5, NOON, event), 'run-1', log_content=whole))


def test_an_event_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Time in India, level, desk and name come first; values with spaces or newlines are quoted."""
    event = {
        'timestamp': '2026-10-19T06:30:00.000Z',
        'level': 'warning',
        'event': 'turn_output',
        'run_id': 'r',
        'seq': 5,
        'desk': 'main',
        'attempt': 1,
        'text': 'NIFTY is\nup',
        'preferred': True,
    }
    print_event(event)
    assert capsys.readouterr().out == (
        '12:00:00 warning  main turn_output attempt=1 text="NIFTY is\\nup" preferred=true\n'
    )
    assert in_fields({'timestamp': 'x', 'level': 'info', 'event': 'date_changed'}) == 'x info     - date_changed'


@pytest.mark.parametrize(
    ('event', 'line'),
    [
        (
            TurnStarted(
                desk='main', session_id='2026-10-19-1', trading_date=date(2026, 10, 19), trigger_id=LONG_ID,
                turn_id=f'{LONG_ID}:2', attempt=2, source='inbox', wait_ms=58_300,
            ),
            '12:00:00  main        turn started        …db04f55f6ce3  attempt 2  from inbox  waited 58.3s',
        ),
        (
            TurnFinished(
                desk='main', session_id='2026-10-19-1', trigger_id='a-1', turn_id='a-1:1', attempt=1, backend='gpt',
                preferred=False, duration_ms=250, exchanges=42, answer='x' * 110,
            ),
            (
                '12:00:00  main        turn finished       a-1  by gpt  not the preferred backend  in 250ms  '
                '42 exchanges  110 characters'
            ),
        ),
        (
            TriggerClosed(desk='main', trigger_id='a-1', outcome='cancelled', by='anil', error='sent\ntwice'),
            '12:00:00  main        trigger closed      a-1  cancelled  by anil  sent twice',
        ),
        (
            SessionStarted(
                desk='main', session_id='2026-10-20-1', reason='daily_rollover', previous_session_id='2026-10-19-1',
                summary_path='/var/lib/x.md',
            ),
            '12:00:00  main        session started     2026-10-20-1  daily_rollover  after 2026-10-19-1',
        ),
        (
            ModelCallFailed(
                desk='main', backend='gpt', purpose='turn', trigger_id='a-1', duration_ms=300_000,
                error_type='BackendError', error='no answer', hint='mend it',
            ),
            '12:00:00  main        WARNING model call failed  a-1  by gpt  for a turn  in 5m  no answer (mend it)',
        ),
        (
            DeskPaused(desk='main', by='anil', reason='expiry day', hint='`trading-agent resume main` lets it go on'),
            (
                '12:00:00  main        WARNING desk paused  by anil  expiry day '
                '(`trading-agent resume main` lets it go on)'
            ),
        ),
        (
            DiskLow(path='/var', disk_free_bytes=200 << 20, disk_free_percent=1.5, hint='free some'),
            '12:00:00  -           ERROR disk low      /var  disk free 200 MiB  disk free percent 1.5 (free some)',
        ),
        (
            ConfigRejected(path='a.toml', error='a.toml: x: is no key (remove it)', hint='remove it'),
            '12:00:00  -           ERROR config rejected  a.toml  a.toml: x: is no key (remove it)',
        ),
    ],
)  # fmt: skip
def test_an_event_in_words(event: Event, line: str) -> None:
    """A person reads the time in India, the desk, what happened, and of the rest what matters."""
    assert told(event) == line


def test_a_heartbeat_of_a_healthy_daemon_is_short() -> None:
    """What is as it nearly always is, is not said; what is not, is."""
    fields: dict[str, Any] = dict.fromkeys(DaemonHeartbeat.__struct_fields__)
    fields = {name: value for name, value in fields.items() if name not in ('desk', 'session_id', 'trading_date')}
    fields |= {'version': '0.1.0', 'desks_running': 3, 'desks_paused': 0, 'desks_parked': 0, 'turns_running': 0}
    fields |= {'queue_depth': 0, 'summaries_owed': 0, 'clock_state': 'steady', 'rss_bytes': 1 << 26}
    fields |= {'events_skipped': 0, 'disk_free_bytes': 3 << 30}
    healthy = told(DaemonHeartbeat(**fields))
    assert healthy == '12:00:00  -           daemon heartbeat    0.1.0  desks running 3  queue 0  disk free 3.0 GiB'
    ill = told(DaemonHeartbeat(**fields | {'desks_parked': 1, 'clock_state': 'behind', 'summaries_owed': 2}))
    assert all(part in ill for part in ('desks parked 1', 'clock state behind', 'summaries owed 2'))


def test_what_is_said_cannot_command_the_terminal() -> None:
    """Newlines in an answer do not break the line, and control characters are shown as such."""
    line = told(
        TurnOutput(desk='main', trigger_id='a-1', turn_id='a-1:1', backend='gpt', text='up\n\x1b[2J'), whole=True
    )
    assert line == '12:00:00  main        turn output         a-1  by gpt  up \ufffd[2J'


def test_a_long_id_is_told_by_its_end() -> None:
    """Ids that begin with the time differ at their end; one that is short is told whole."""
    assert short_id('replay/2025-12-16/7') == 'replay/2025-12-16/7'
    assert short_id(LONG_ID) == '…db04f55f6ce3'


def test_every_event_has_its_words() -> None:
    """Whatever is in the catalogue can be told in words: each field of any value is a part of one line."""
    for name, kind in event_types().items():
        record = {'timestamp': NOON.isoformat(), 'level': kind.level, 'event': name, 'run_id': 'r', 'seq': 1}
        for field in kind.__struct_fields__:
            for value in ('x', 3, True, 0.5, ['a', 'b'], None):
                line = in_words({field: value} | record | {'desk': 'main'})
                assert name.replace('_', ' ') in line
                assert '\n' not in line
