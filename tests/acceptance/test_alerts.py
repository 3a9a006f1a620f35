"""The alerts in `config/alerts`: each on a log that the daemon wrote while its fault was made, and all on a quiet day.

A fault is made in seconds, with a heartbeat each second. Where an alert is about minutes or hours, the log is asked at
a later time, or its last heartbeat comes again each minute; each test says which. Asked are the rules, by the evaluator
in `loki_rules.py`, and the queries for the journal in the README, by a shell, with the log in place of `journalctl`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
from file_clock import FileClock
from loki_rules import Entry, Parser, Refused, Stream, load, span_of
from process import Process, Start, clean_environ, until

from trading_agent.cli.main import COMMANDS
from trading_agent.clock import INDIA
from trading_agent.daemon.vitals import market_hours
from trading_agent.event_catalog import catalog
from trading_agent.events import Outcome

ROOT = Path(__file__).parents[2]
RULES = load(ROOT / 'config' / 'alerts' / 'loki-rules.yaml')
README = (ROOT / 'config' / 'alerts' / 'README.md').read_text()
QUERIES = dict(re.findall(r'^## (TradingAgent\w+)\n.*?^```sh\n(.*?)^```', README, re.MULTILINE | re.DOTALL))
QUERY = re.compile(r'journalctl -u trading-agent -o cat --since -(\d+)(min|h|d) \| (.*)', re.DOTALL)
LABELS = {'unit': 'trading-agent.service', 'host': 'box'}
PYTHONPATH = {'PYTHONPATH': os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get('PYTHONPATH')]))}
MORNING = datetime(2026, 3, 10, 10, tzinfo=INDIA).astimezone(UTC)
MIDNIGHT = datetime(2026, 3, 10, 18, 30, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
FROM_SYSTEMD = 'Started trading-agent.service - trading-agent, LLM trading desks in session.'

Log = list[Entry]


def desk(name: str = 'main', backend: str = 'offline', kind: str = 'offline', **options: str) -> str:
    """Returns the configuration of a desk whose first backend is of this kind, and the second one is `offline`."""
    further = '' if backend == 'offline' else ', "offline"' if kind == 'offline' else ''
    lines = [f'[[desks]]\nname = "{name}"\nbackends = ["{backend}"{further}]']
    lines += [f'[backends.{backend}]\nkind = "{kind}"', *(f'{key} = {value}' for key, value in options.items())]
    return '\n'.join([*lines, ''])


@pytest.fixture
def drill(start: Start) -> Callable[..., Process]:
    """Starts a daemon with a heartbeat each second and the faults at hand."""

    def started(config: str = '', *, clock: FileClock | None = None, prefix: Sequence[str] = ()) -> Process:
        text = f'heartbeat_every = "1s"\n{config}'
        if 'disk_low' not in config:  # however full the disk of this machine is
            text = f'disk_low = "0B"\ndisk_low_percent = 0.0\n{text}'
        # Files that Python keeps for itself could be cut off by the limit of one drill.
        environ = {**PYTHONPATH, 'PYTHONDONTWRITEBYTECODE': '1'}
        program = ('-m', 'trading_agent') if clock is None else clock.program
        return start(text, program=program, prefix=prefix, environ=environ).ready()

    return started


def log_of(*daemons: Process) -> Log:
    """Returns what daemons that ran one after the other have logged, once the last has given one more heartbeat."""
    last = daemons[-1]
    if last.alive:
        last.wait_for('daemon_heartbeat', count=len(last.found('daemon_heartbeat')) + 1)
    entries = [
        Entry(datetime.fromisoformat(line['timestamp']), raw.decode().rstrip('\n'))
        for daemon in daemons
        for line, raw in zip(daemon.lines, daemon.raw, strict=False)
    ]
    return sorted(entries, key=lambda entry: entry.at)


def repeated(entry: Entry, times: int) -> Log:
    """Returns a line that comes again so often, each time a minute later."""
    return [Entry(entry.at + number * MINUTE, entry.line) for number in range(1, times + 1)]


def last_heartbeat(log: Log) -> Entry:
    """Returns the last heartbeat of a log."""
    return next(entry for entry in reversed(log) if '"event":"daemon_heartbeat"' in entry.line)


def printed(alert: str, log: Log, at: datetime) -> str:
    """Returns what the query of an alert prints at an instant."""
    match = QUERY.fullmatch(QUERIES[alert].strip())
    assert match, f'the query of {alert} is of another form'
    since = at - span_of(match[1] + match[2][0])
    lines = [entry.line for entry in log if since < entry.at <= at]
    text = ''.join(f'{line}\n' for line in [FROM_SYSTEMD, *lines])
    done = subprocess.run(['sh', '-c', f'cat | {match[3]}'], input=text, capture_output=True, text=True, check=False)
    assert not done.stderr, f'{alert}: {done.stderr}'
    return done.stdout


def check(log: Log, expected: set[str], at: datetime | None = None) -> dict[str, list[dict[str, str]]]:
    """Checks which alerts fire at an instant, by default a second after the log's end, and which queries print.

    Returns:
        The labels of each alert that fires.
    """
    at = at or log[-1].at + SECOND
    *_, (_, fires) = RULES.run(Stream(LABELS, log), max(log[0].at, at - 3 * HOUR), at)
    assert set(fires) == expected
    assert {alert for alert in QUERIES if printed(alert, log, at)} == expected
    return fires


# -- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('number', [signal.SIGSTOP, signal.SIGKILL])
def test_no_heartbeat(drill: Callable[..., Process], number: signal.Signals) -> None:
    """A daemon that is stopped or killed is missed after three minutes, and not before: the log is asked later."""
    daemon = drill()
    log = log_of(daemon)
    daemon.send_signal(number)
    missed_at = last_heartbeat(log).at + 3 * MINUTE
    check(log, set(), missed_at - SECOND)
    check(log, {'TradingAgentNoHeartbeat'}, missed_at)


def test_restarting(drill: Callable[..., Process]) -> None:
    """Two starts in ten minutes are none of anybody's business, the third is."""
    daemons = [drill()]
    for expected in (set[str](), {'TradingAgentRestarting'}):
        daemons[-1].kill()
        daemons.append(drill())
        check(log_of(*daemons), expected)


def test_a_parked_desk(drill: Callable[..., Process], tmp_path: Path) -> None:
    """A desk that is parked is told by its name, also days later, until it was resumed; the log is asked later."""
    in_the_way = tmp_path / 'ws' / 'desks' / 'main' / 'sessions'
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text('a file where a folder should be')
    daemon = drill(desk() + '[[desks]]\nname = "healthy"\n')
    log = log_of(daemon)
    assert check(log, {'TradingAgentDeskParked'})['TradingAgentDeskParked'] == [{'host': 'box', 'desk': 'main'}]
    check(log, {'TradingAgentDeskParked', 'TradingAgentNoHeartbeat'}, log[-1].at + timedelta(days=6))
    in_the_way.unlink()
    assert daemon.request('POST', '/v1/desks/main/resume', {})[0] == 200
    daemon.wait_for('desk_started', desk='main')
    check(log_of(daemon), set())


def test_a_late_rollover(drill: Callable[..., Process], tmp_path: Path) -> None:
    """A turn that runs on past midnight makes the rollover late, until it is done."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - 5 * MINUTE)
    file = tmp_path / 'answer'
    daemon = drill(desk('main', 'slow', 'alert_parts:waiting', file=f"'{file}'"), clock=clock)
    daemon.send('the last of the day')
    daemon.wait_for('turn_started')
    clock.sleep_until(MIDNIGHT + MINUTE)
    check(log_of(daemon), set())
    clock.sleep_until(MIDNIGHT + 2 * MINUTE + SECOND)
    daemon.wait_for('rollover_late')
    assert check(log_of(daemon), {'TradingAgentRolloverLate'})['TradingAgentRolloverLate'][0]['desk'] == 'main'
    file.touch()
    daemon.wait_for('rollover_finished')
    check(log_of(daemon), set())


def test_a_degraded_summary(drill: Callable[..., Process], tmp_path: Path) -> None:
    """A full summary that is owed for two hours is told, until it is made; the heartbeat comes again each minute."""
    clock = FileClock(tmp_path / 'clock', MIDNIGHT - 5 * MINUTE)
    daemon = drill(desk('main', 'model', 'alert_parts:no_reviews'), clock=clock)
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    clock.sleep_until(MIDNIGHT + SECOND)
    daemon.wait_for('summary_written', quality='degraded')
    daemon.wait_for('daemon_heartbeat', summaries_owed=1)
    log = log_of(daemon)
    owed = last_heartbeat(log)
    log += repeated(owed, 125)
    check(log[: log.index(owed) + 115], set(), owed.at + 113 * MINUTE)
    check(log, {'TradingAgentSummaryDegraded'}, owed.at + 125 * MINUTE)
    daemon.config.write_text('heartbeat_every = "1s"\n')
    daemon.send_signal(signal.SIGHUP)
    daemon.wait_for('summary_written', quality='backfilled')
    daemon.wait_for('daemon_heartbeat', summaries_owed=0)
    paid = last_heartbeat(log_of(daemon))
    log += repeated(Entry(log[-1].at, paid.line), 6)
    check(log, set())


def test_a_trigger_that_waits(drill: Callable[..., Process], tmp_path: Path) -> None:
    """A trigger open for over a minute is told at 10:00 IST on a weekday, and not by the heartbeats of 16:00."""
    clock = FileClock(tmp_path / 'clock', MORNING)
    daemon = drill(desk('main', 'slow', 'alert_parts:waiting', file=f"'{tmp_path / 'never'}'"), clock=clock)
    daemon.send('hello')
    daemon.wait_for('turn_started')
    check(log_of(daemon), set())
    clock.sleep(MINUTE)
    aged = until(
        lambda: [line for line in daemon.lines if line.get('oldest_trigger_age_ms', 0) > 60_000], 'it has aged'
    )
    assert aged[0]['market_hours']
    fires = check(log_of(daemon), {'TradingAgentTriggerWaits'})
    assert fires['TradingAgentTriggerWaits'] == [{'host': 'box', 'desk': 'main'}]
    clock.sleep_until(MORNING + 6 * HOUR)
    evening = daemon.wait_for('daemon_heartbeat', market_hours=False)
    assert evening['oldest_trigger_age_ms'] > 5 * 3600 * 1000
    log = [entry for entry in log_of(daemon) if '"market_hours":true' not in entry.line]
    check(log, set())


def test_a_failed_trigger(drill: Callable[..., Process]) -> None:
    """A trigger that no backend could answer is told as failed."""
    daemon = drill(desk('main', 'model', 'alert_parts:refusing'))
    daemon.send('hello')
    daemon.wait_for('trigger_closed', outcome='failed')
    fires = check(log_of(daemon), {'TradingAgentTriggerNotAnswered'})
    assert fires['TradingAgentTriggerNotAnswered'] == [{'host': 'box', 'desk': 'main', 'outcome': 'failed'}]


def test_a_stale_trigger(drill: Callable[..., Process]) -> None:
    """A trigger that expires while its desk is paused is told as stale; the pause itself is nobody's alert."""
    daemon = drill()
    assert daemon.cli('pause', 'main').returncode == 0
    check(log_of(daemon), set())
    assert daemon.cli('send', 'main', 'only now', '--expires-in', '2s').returncode == 0
    daemon.wait_for('trigger_closed', outcome='stale')
    fires = check(log_of(daemon), {'TradingAgentTriggerNotAnswered'})
    assert fires['TradingAgentTriggerNotAnswered'][0]['outcome'] == 'stale'


def test_a_quarantined_trigger(drill: Callable[..., Process], tmp_path: Path) -> None:
    """A trigger that was cut off by three kills is told as quarantined, and the restarts are."""
    config = desk('main', 'slow', 'alert_parts:waiting', file=f"'{tmp_path / 'never'}'")
    daemons = [drill(config)]
    daemons[0].send('poison')
    for attempt in (1, 2, 3):
        daemons[-1].wait_for('turn_started', attempt=attempt)
        daemons[-1].kill()
        daemons.append(drill(config))
    daemons[-1].wait_for('trigger_closed', outcome='quarantined')
    fires = check(log_of(*daemons), {'TradingAgentTriggerNotAnswered', 'TradingAgentRestarting'})
    assert fires['TradingAgentTriggerNotAnswered'][0]['outcome'] == 'quarantined'


def test_not_the_preferred_backend(drill: Callable[..., Process]) -> None:
    """Told is a desk none of whose answers came from its first backend, and not one that had some from it."""
    daemon = drill(desk('main', 'down', fail_every='1') + desk('other', 'shaky', fail_every='2'))
    for number, name in enumerate(['other', 'main', 'other'], 1):
        daemon.send('hello', desk=name)
        daemon.wait_for('turn_finished', count=number)
    assert [line['preferred'] for line in daemon.found('turn_finished', desk='other')] == [True, False]
    log = log_of(daemon)
    fires = check(log, {'TradingAgentNotPreferredBackend'})
    assert fires['TradingAgentNotPreferredBackend'] == [{'host': 'box', 'desk': 'main'}]


def test_a_low_disk(drill: Callable[..., Process]) -> None:
    """A disk with less free space than the configuration asks for is told."""
    check(log_of(drill('disk_low = "1000000GiB"\n')), {'TradingAgentDiskLow'})


def test_a_write_that_fails(drill: Callable[..., Process]) -> None:
    """An answer that cannot be written is told: no file may grow beyond 100,000 bytes, and the answer is longer."""
    config = desk('main', 'model', 'alert_parts:verbose')
    daemon = drill(config, prefix=['prlimit', '--fsize=100000'])
    daemon.send('hello')
    daemon.wait_for('write_failed')
    fires = check(log_of(daemon), {'TradingAgentWriteFailed'})
    assert fires['TradingAgentWriteFailed'] == [{'host': 'box', 'desk': 'main'}]


def test_a_clock_that_is_set(drill: Callable[..., Process], tmp_path: Path) -> None:
    """A clock that is set back a day is told at once, and as behind once that has lasted for a minute."""
    clock = FileClock(tmp_path / 'clock', MORNING)
    daemon = drill(clock=clock)
    clock.step(-timedelta(days=1))
    daemon.wait_for('clock_stepped')
    check(log_of(daemon), {'TradingAgentClockStepped'})
    clock.sleep(61 * SECOND)
    daemon.wait_for('clock_behind')
    check(log_of(daemon), {'TradingAgentClockStepped', 'TradingAgentClockBehind'})


def test_a_blocked_loop(drill: Callable[..., Process]) -> None:
    """A component that blocks the event loop is told."""
    daemon = drill('[[components]]\nname = "rude"\nentry = "alert_parts:blocking"\n')
    daemon.wait_for('loop_blocked')
    check(log_of(daemon), {'TradingAgentLoopBlocked'})


def test_a_rejected_configuration(drill: Callable[..., Process]) -> None:
    """A configuration that was refused is told, also hours later, until a good one is in force."""
    daemon = drill()
    good = daemon.config.read_text()
    daemon.config.write_text('typo = 1\n')
    daemon.send_signal(signal.SIGHUP)
    daemon.wait_for('config_rejected')
    log = log_of(daemon)
    check(log, {'TradingAgentConfigRejected'})
    check(log + repeated(last_heartbeat(log), 600), {'TradingAgentConfigRejected'})
    daemon.config.write_text(good)
    daemon.send_signal(signal.SIGHUP)
    daemon.wait_for('config_reloaded')
    check(log_of(daemon), set())


def test_a_failing_component(drill: Callable[..., Process]) -> None:
    """A component that fails is told by its name."""
    daemon = drill('[[components]]\nname = "broken"\nentry = "alert_parts:failing"\n')
    daemon.wait_for('component_failed')
    fires = check(log_of(daemon), {'TradingAgentComponentFailed'})
    assert fires['TradingAgentComponentFailed'] == [{'host': 'box', 'component': 'broken'}]


# -- no fault --------------------------------------------------------------------------------------------------


def test_a_quiet_day(tmp_path: Path) -> None:
    """In a day of 850 triggers and a rollover no alert fires at any minute, and no query prints."""
    data = sorted((ROOT / 'tests' / 'data').glob('announcements-*.txt'))
    heard = [line for path in data for line in path.read_text().split('\n') if line.strip()]
    triggers = tmp_path / 'triggers'
    triggers.write_text('\n'.join(f'{heard[number % len(heard)]} ({number})' for number in range(850)))
    program = Path(__file__).with_name('quiet_day.py')
    command = [sys.executable, str(program), str(tmp_path / 'ws'), str(triggers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=clean_environ())
    assert not done.returncode, done.stderr[-5000:]
    lines = [(json.loads(line), line) for line in done.stderr.split('\n') if line]
    log = [Entry(datetime.fromisoformat(fields['timestamp']), line) for fields, line in lines]
    counts = {name: sum(fields['event'] == name for fields, _ in lines) for name in {f['event'] for f, _ in lines}}
    assert (counts['turn_finished'], counts['rollover_finished'], counts['daemon_heartbeat']) == (850, 1, 990)
    assert sum(fields.get('market_hours', False) for fields, _ in lines) == 375
    moments = list(RULES.run(Stream(LABELS, log), log[0].at + MINUTE, log[-1].at))
    assert len(moments) == 990
    assert {alert for _, fires in moments for alert in fires} == set()
    for at in [log[0].at + 5 * MINUTE, MORNING, MORNING + 5 * HOUR, MIDNIGHT, MIDNIGHT + 3 * MINUTE, log[-1].at]:
        check(log, set(), at)


# -- what the rules and queries say ----------------------------------------------------------------------------


def names_in(text: str) -> tuple[set[str], set[str]]:
    """Returns the events and the fields that an expression or a query names."""
    events = set()
    for name in re.findall(r'"event":"([^"]+)"', text):
        stem, _, choices = name.partition('(')
        events |= {f'{stem}{choice}' for choice in choices.rstrip(')').split('|')}
    events |= set(re.findall(r'eq \.event "(\w+)"', text))
    extracted = ''.join(re.findall(r'\| json ((?:\w+="\w+"[, ]*)+)', text))
    return events, {*re.findall(r'"(\w+)":', text), *re.findall(r'="(\w+)"', extracted)}


@pytest.mark.parametrize('text', [*(rule.text for rule in RULES.rules), *QUERIES.values()])
def test_names(text: str) -> None:
    """Every event, field and outcome that a rule or a query names is in the catalogue; each event has each field."""
    fields_of = {str(item['event']): set(dict[str, str](item['fields'])) for item in catalog()}  # type: ignore[call-overload]
    events, fields = names_in(text)
    assert events
    for event in events:
        assert fields <= {'event', *fields_of[event]}
    outcomes = re.findall(r'"outcome":"\(([^)]*)\)"', text)
    assert {word for words in outcomes for word in words.split('|')} <= set(get_args(Outcome))


def test_each_alert_is_explained() -> None:
    """Each alert has a section with a query over the same span, a severity, and words that name all its labels."""
    sections = re.findall(r'^## (TradingAgent\w+)', README, re.MULTILINE)
    assert list(QUERIES) == [rule.alert for rule in RULES.rules] == sections
    for rule in RULES.rules:
        assert rule.labels['severity'] in ('warning', 'critical')
        assert set(rule.annotations) == {'summary', 'action'}
        spans = [rule.pending or span_of(text) for text in re.findall(r'\[(\d+[smhd])\]', rule.text)]
        match = QUERY.match(QUERIES[rule.alert])
        assert match
        assert set(spans) == {span_of(match[1] + match[2][0])}
        told = set(re.findall(r'\$labels\.(\w+)', ' '.join(rule.annotations.values())))
        kept = {name for names in re.findall(r'by \(([^)]*)\)', rule.text) for name in names.split(', ')}
        assert told == kept


def test_commands() -> None:
    """Every command that a rule or the README tells a person to type is one."""
    actions = ' '.join(rule.annotations['action'] for rule in RULES.rules)
    typed = re.findall(r'(?:`|^    )trading-agent\s+(\w+)', f'{README} {actions}', re.MULTILINE)
    assert {'resume', 'status', 'why', 'check'} <= set(typed) <= set(COMMANDS)


@pytest.mark.parametrize(
    ('day', 'time', 'expected'),
    [
        (10, '09:14:59.999999', False),
        (10, '09:15', True),
        (10, '15:29:59.999999', True),
        (10, '15:30', False),
        (13, '12:00', True),
        (14, '12:00', False),
        (15, '12:00', False),
        (16, '12:00', True),
    ],
)
def test_market_hours(day: int, time: str, expected: bool) -> None:  # noqa: FBT001
    """Market hours are 09:15 to 15:30 IST from Monday to Friday, whatever zone the instant is given in."""
    instant = datetime.fromisoformat(f'2026-03-{day}T{time}+05:30')
    assert market_hours(instant) is expected
    assert market_hours(instant.astimezone(UTC)) is expected


# -- the evaluator ---------------------------------------------------------------------------------------------

SMALL = [
    Entry(MORNING, '{"event":"a","desk":"x","n":1}'),
    Entry(MORNING + MINUTE, '{"event":"a","desk":"y","n":20}'),
    Entry(MORNING + MINUTE, '{"event":"b","desk":"y"}'),
    Entry(MORNING + 2 * MINUTE, '{"event":"b","desk":"x","on":true}'),
]
STATE = '| json desk="desk", event="event" | label_format up=`{{ if eq .event "a" }}1{{ else }}0{{ end }}` | unwrap up'
BY_DESK = 'sum by (d) (count_over_time({{unit="u"}} |= `"{}":` | json d="desk" [10m]))'


@pytest.mark.parametrize(
    ('expression', 'expected'),
    [
        ('count_over_time({unit="u"}[10m])', {'': 4}),
        ('count_over_time({unit="u"}[2m])', {'': 3}),
        ('count_over_time({unit="other"}[10m])', {}),
        ('count_over_time({unit="u"} |= `"a"` != "x" [10m])', {'': 1}),
        ('count_over_time({unit="u"} |~ `"(x|z)"` [10m]) > 2', {}),
        ('count_over_time({unit="u"} |= `"a"` | json n="n" | n > 1 [10m])', {'n=20': 1}),
        ('sum by (d) (count_over_time({unit="u"} | json d="desk" [10m])) >= 2', {'d=x': 2, 'd=y': 2}),
        ('sum by (on) (count_over_time({unit="u"} | json on="on" [10m]))', {'': 3, 'on=true': 1}),
        ('absent_over_time({unit="u"} |= "a" [1m])', {'unit=u': 1}),
        ('absent_over_time({unit="u"} |= "a" [2m])', {}),
        (f'last_over_time({{unit="u"}} {STATE} [10m]) by (desk)', {'desk=x': 0, 'desk=y': 0}),
        (f'last_over_time({{unit="u"}} != `y","n` {STATE} [10m]) by (desk) < 1', {'desk=x': 0, 'desk=y': 0}),
        (f'{BY_DESK.format("n")} > 0 unless {BY_DESK.format("on")} > 0', {'d=y': 1}),
    ],
)
def test_the_evaluator(expression: str, expected: dict[str, float]) -> None:
    """An expression is worked out as Loki's documentation has it: a span holds its end, and not its start."""
    result = Parser(expression).parse().read(Stream({'unit': 'u'}, SMALL))(MORNING + 2 * MINUTE)
    found = {
        ','.join(f'{key}={value}' for key, value in sorted(series) if key != 'unit' or 'absent' in expression): value
        for series, value in result.items()
    }
    assert found == expected


@pytest.mark.parametrize(
    'expression',
    [
        'rate({unit="u"}[5m])',
        'count_over_time({unit=~"u"}[5m])',
        'count_over_time({unit="u"} | logfmt [5m])',
        'count_over_time({unit="u"} | json [5m])',
        'count_over_time({unit="u"} | json d="desk" | d = "x" [5m])',
        'count_over_time({unit="u"} | json n="n" | unwrap n [5m])',
        'last_over_time({unit="u"} [5m]) by (desk)',
        'sum (count_over_time({unit="u"}[5m]))',
        'count_over_time({unit="u"}[5m]) > 0 or count_over_time({unit="v"}[5m]) > 0',
        'count_over_time({unit="u"}[5m]) > 0 )',
        'count_over_time({unit="u"} | label_format x=`{{ .event }}` [5m])',
    ],
)
def test_the_evaluator_refuses(expression: str) -> None:
    """What it does not know, and what would be no LogQL, it refuses instead of guessing."""
    with pytest.raises(Refused):
        Parser(expression).parse()


@pytest.mark.parametrize('stage', ['json n="n" | n > 1', 'json unit="desk"'])
def test_the_evaluator_fails_where_loki_does(stage: str) -> None:
    """A field that is missing and compared with a number, or named like a label of the stream, is an error."""
    with pytest.raises(Refused):
        Parser(f'count_over_time({{unit="u"}} | {stage} [5m])').parse().read(Stream({'unit': 'u'}, SMALL))
