"""The names and shapes that people and scripts rely on, held to the code word for word."""

import dataclasses
import json
from datetime import UTC, date, datetime
from typing import Any, get_args

import msgspec
import pytest
from click.testing import CliRunner

from trading_agent import config, event_catalog
from trading_agent.cli.main import cli
from trading_agent.daemon import status
from trading_agent.daemon.replay import ReplayReport
from trading_agent.memory import trigger_log
from trading_agent.memory.daily_summary import SummarySection
from trading_agent.memory.session_store import DailySummary, Exchange, RouteState, SessionState
from trading_agent.routing.turn_runner import TurnRunner
from trading_agent.trigger import Receipt, RefusalReason, Trigger
from trading_agent.units import TimeOfDay

NOW = datetime(2026, 10, 19, 3, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ('kind', 'fields'),
    [
        (
            Trigger,
            ['text', 'desk', 'id', 'source', 'priority', 'received_at', 'not_before', 'expires_at'],
        ),
        (
            Exchange,
            [
                'trigger_text',
                'answer',
                'backend_name',
                'finished_at',
                'trigger_id',
                'started_at',
                'usage',
                'trigger_ids',
            ],
        ),
        (RouteState, ['exchanges_seen', 'runner_state']),
        (SessionState, ['session_id', 'trading_date', 'routes']),
        (DailySummary, ['trading_date', 'text']),
    ],
)
def test_records_are_frozen_dataclasses(kind: Any, fields: list[str]) -> None:  # noqa: ANN401
    """The records of the seeds are frozen dataclasses with these fields in this order."""
    assert [field.name for field in dataclasses.fields(kind)] == fields
    assert kind.__dataclass_params__.frozen


def test_a_trigger_has_these_defaults() -> None:
    """`Trigger(text, desk)` comes from the api, as a feed, now, and is good at any time."""
    trigger = Trigger('x', 'main')
    assert (trigger.source, trigger.priority, trigger.not_before, trigger.expires_at) == ('api', 'feed', None, None)
    assert trigger.received_at.tzinfo is UTC
    assert 1 <= len(trigger.id) <= 128
    assert dataclasses.replace(trigger, text='y').id == trigger.id


def test_a_receipt_says_these_things() -> None:
    """A receipt is a frozen struct of id, desk, status and reason."""
    assert Receipt.__struct_fields__ == ('id', 'desk', 'status', 'reason')
    assert Receipt.__struct_config__.frozen
    assert set(get_args(RefusalReason)) == {
        'unknown_desk', 'too_large', 'invalid', 'expired', 'queue_full', 'storage', 'stopping',
    }  # fmt: skip


CONFIG_KEYS: dict[str, object] = {
    'workspace': None,
    'log_level': 'info',
    'log_content': False,
    'max_concurrent_turns': 4,
    'drain': 30.0,
    'control_group': None,
    'heartbeat_every': 60.0,
    'max_trigger_size': 1 << 20,
    'watch_config': False,
    'components': [],
}
DESK_KEYS: dict[str, object] = {
    'backends': ['offline'],
    'rollover_at': TimeOfDay(),
    'queue_limit': 1000,
    'turn_timeout': 300.0,
    'summary_timeout': 180.0,
    'summary_budget': 6000,
    'memory_budget': 12000,
    'carry_summaries': 3,
}


def test_configuration_keys_and_defaults() -> None:
    """Each key of the configuration has the default that the reference says."""
    loaded = config.Config()
    for key, default in CONFIG_KEYS.items():
        if key != 'workspace':
            assert getattr(loaded, key) == default, key
    desk = config.Desk(name='main')
    for key, default in DESK_KEYS.items():
        assert getattr(desk, key) == default, key
    assert loaded.desks == [desk]
    assert set(loaded.backends) == {'offline'}
    assert config.OfflineOptions.__struct_fields__ == ('delay', 'chunk_delay', 'fail_every', 'hang_every')


def test_what_is_on_disk() -> None:
    """The lines of triggers.jsonl, an exchange and a summary's heading look as they are documented."""
    trigger = Trigger('x', 'main', id='t1', received_at=NOW)
    lines = [
        trigger_log.Header(1, 'main'),
        trigger_log.Accepted('2026-10-19T03:30:00.000000Z', trigger),
        trigger_log.Started('2026-10-19T03:30:00.000000Z', 't1', 1),
        trigger_log.Interrupted('2026-10-19T03:30:00.000000Z', 't1', 1),
        trigger_log.Closed('2026-10-19T03:30:00.000000Z', 't1', 'answered', '2026-10-19-1'),
    ]
    decoded = [json.loads(msgspec.json.encode(line)) for line in lines]
    assert decoded[0] == {'type': 'header', 'version': 1, 'desk': 'main'}
    assert decoded[1]['type'] == 'accepted'
    assert decoded[1]['trigger']['id'] == 't1'
    assert decoded[1]['trigger']['received_at'] == '2026-10-19T03:30:00Z'
    assert {key: decoded[2][key] for key in ('type', 'id', 'attempt')} == {'type': 'started', 'id': 't1', 'attempt': 1}
    assert decoded[3]['type'] == 'interrupted'
    assert decoded[4] == {
        'type': 'closed', 'at': '2026-10-19T03:30:00.000000Z', 'id': 't1', 'outcome': 'answered',
        'session_id': '2026-10-19-1',
    }  # fmt: skip
    exchange = Exchange('told', 'said', 'offline', '2026-10-19T03:30:00.000000Z')
    assert list(exchange.to_json_dictionary()) == ['trigger_text', 'answer', 'backend_name', 'finished_at']
    section = SummarySection('2026-10-19-1', 'text', degraded=True)
    assert section.to_markdown().split('\n')[0] == '## Session 2026-10-19-1 (degraded)'


def test_status_has_this_shape() -> None:
    """`status --json` has the documented keys, in their order."""
    assert status.Status.__struct_fields__ == ('daemon', 'clock', 'desks')
    assert status.DaemonInfo.__struct_fields__ == ('version', 'run_id', 'pid', 'started_at')
    assert status.ClockStatus.__struct_fields__ == ('now_ist', 'state')
    assert status.DeskStatus.__struct_fields__ == (
        'name', 'state', 'reason', 'session_id', 'trading_date', 'exchanges', 'queue', 'oldest_trigger_at', 'turn',
        'last_turn_at', 'backends', 'next_boundary', 'usage', 'last_backend', 'last_preferred',
    )  # fmt: skip
    assert status.TokensUsed.__struct_fields__ == ('session', 'day')
    assert set(get_args(status.DeskState)) == {'starting', 'running', 'paused', 'parked'}


def test_replay_has_this_shape() -> None:
    """`replay --json` has the documented keys."""
    report = ReplayReport('w', [], [], 2, [date(2025, 12, 16)], 1.0)
    assert json.loads(msgspec.json.encode(report)) == {
        'workspace': 'w', 'days': [], 'sessions': [], 'rollovers': 2, 'summaries': ['2025-12-16'], 'wall_seconds': 1.0,
    }  # fmt: skip


def test_the_command_line_has_these_commands() -> None:
    """Each documented command is there and has a help."""
    runner = CliRunner()
    for command in (
        'run', 'init', 'check', 'reload', 'send', 'status', 'events', 'sessions', 'show', 'summaries', 'rollover',
        'pause', 'resume', 'cancel', 'why', 'replay', 'export',
        'search', 'index', 'memory', 'skills', 'backends', 'verify', 'repair',
    ):  # fmt: skip
        result = runner.invoke(cli, [command, '--help'])
        assert result.exit_code == 0, (command, result.output)
        assert 'Usage:' in result.output


def test_the_catalogue_explains_every_field() -> None:
    """`events --catalog` has each event with its level, its fields' meanings and what it is about."""
    for entry in event_catalog.catalog():
        assert set(entry) == {'event', 'level', 'fields', 'about'}
        assert entry['about']
        fields = entry['fields']
        assert isinstance(fields, dict)
        assert {'desk', 'session_id', 'trading_date'} <= set(fields)
        assert all(fields.values())
    used = {field for kind in event_catalog.event_types().values() for field in kind.__struct_fields__}
    assert used == set(event_catalog.FIELD_MEANINGS), 'a meaning without a field'


def test_a_runner_is_anything_with_run() -> None:
    """The contract of a backend is one method."""
    assert [name for name in vars(TurnRunner) if not name.startswith('_')] == ['run']
