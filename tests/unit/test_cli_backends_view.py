"""How `backends` looks to people."""

from typing import Any

import pytest

from trading_agent.cli.backends_view import print_backends, print_disabled, print_enabled, print_test

USE = {'desk': 'main', 'place': 1, 'usage': {}, 'daily_token_budget': 0, 'exchanges_behind': 0, 'tokens_behind': 0}
UP: dict[str, Any] = {
    'name': 'claude',
    'kind': 'anthropic',
    'model': 'claude-x',
    'state': 'up',
    'failures': 0,
    'error_type': '',
    'error': '',
    'hint': '',
    'retry_after_ms': 0,
    'disabled': None,
    'desks': [USE],
}
FAILING = {**UP, 'state': 'failing', 'failures': 1, 'error': 'overloaded', 'error_type': 'BackendDown'}
DISABLED = {**UP, 'state': 'disabled', 'disabled': {'at': '2026-10-19T06:30:00Z', 'by': 'anil', 'reason': ''}}
TEST: dict[str, Any] = {
    'name': 'claude',
    'ok': True,
    'state': 'up',
    'duration_ms': 1234,
    'first_output_ms': 812,
    'usage': {'input_tokens': 25, 'output_tokens': 4},
    'model': 'claude-x',
    'error_type': '',
    'error': '',
    'hint': '',
}


def shown(capsys: pytest.CaptureFixture[str], *backends: dict[str, Any]) -> list[str]:
    """Returns the lines that are written."""
    print_backends(backends)
    return capsys.readouterr().out.rstrip('\n').split('\n')


def test_desks_come_in_order_with_their_backends_by_preference(capsys: pytest.CaptureFixture[str]) -> None:
    """Under each desk, named once, stand its backends in the order in which they are asked."""
    second = {**UP, 'name': 'gpt', 'desks': [{**USE, 'place': 2}, {**USE, 'desk': 'options'}]}
    first = {**UP, 'desks': [USE, {**USE, 'desk': 'options', 'place': 2}]}
    assert [line.split() for line in shown(capsys, second, first)[5:]] == [
        ['main', 'preferred', 'claude', '-', '-'],
        ['2', 'gpt', '-', '-'],
        ['options', 'preferred', 'gpt', '-', '-'],
        ['2', 'claude', '-', '-'],
    ]


def test_a_budget_is_told_with_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    """What a desk has used today stands beside what it may use, where that is limited."""
    used = {**USE, 'usage': {'input_tokens': 400_000, 'output_tokens': 25_000}}
    assert '425k' in shown(capsys, {**UP, 'desks': [used]})[-1]
    assert '425k of 500k (85%)' in shown(capsys, {**UP, 'desks': [{**used, 'daily_token_budget': 500_000}]})[-1]


def test_a_gap_is_told_in_exchanges_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """What a backend has not seen is counted, and estimated in tokens."""
    behind = {**USE, 'exchanges_behind': 1, 'tokens_behind': 61}
    assert shown(capsys, {**UP, 'desks': [behind]})[-1].endswith('1 exchange, about 61 tokens')
    behind = {**USE, 'exchanges_behind': 1200, 'tokens_behind': 84_500}
    assert shown(capsys, {**UP, 'desks': [behind]})[-1].endswith('1,200 exchanges, about 84.5k tokens')


@pytest.mark.parametrize(
    ('backend', 'told'),
    [
        (UP, None),
        ({**FAILING, 'retry_after_ms': 12_400}, 'claude: failed: overloaded; tried again in 12s'),
        (
            {**FAILING, 'failures': 3, 'hint': 'wait\x1b'},
            'claude: failed 3 times in a row: overloaded (wait\ufffd); tried again with the next call',
        ),
        (DISABLED, 'claude: disabled by anil at 2026-10-19 12:00:00 IST (`trading-agent backends enable claude`)'),
        (
            {**FAILING, 'state': 'disabled', 'disabled': {**DISABLED['disabled'], 'reason': 'a drill'}},
            (
                'claude: disabled by anil at 2026-10-19 12:00:00 IST: a drill '
                '(`trading-agent backends enable claude`); failed: overloaded'
            ),
        ),
        ({**UP, 'desks': []}, 'claude: no desk uses it'),
    ],
)
def test_what_is_wrong_stands_below(
    capsys: pytest.CaptureFixture[str], backend: dict[str, Any], told: str | None
) -> None:
    """Why a backend is not up, when it is asked again and what mends it are told in a line; of others nothing."""
    lines = shown(capsys, backend)
    assert lines[-2:] == ['', told] if told is not None else lines[-1].startswith('main ')


def test_a_test_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An answer is told with its latencies, its tokens and its model, as far as they are known; a failure with why."""
    print_test(TEST, 8)
    print_test({**TEST, 'first_output_ms': None, 'usage': {}, 'model': '', 'state': 'disabled'}, 8)
    failed = {'ok': False, 'error_type': 'BackendDown', 'error': 'over\nloaded\x1b', 'hint': 'wait\na little'}
    print_test({**TEST, **failed}, 8)
    assert capsys.readouterr().out.split('\n') == [
        'claude    ok      first output after 812ms, whole answer after 1.2s, 25 tokens in, 4 out, model claude-x',
        'claude    ok      whole answer after 1.2s, it stays disabled',
        'claude    FAILED  after 1.2s: BackendDown: over loaded\ufffd',
        '          hint: wait a little',
        '',
    ]


def test_a_switch_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What disabling and enabling came to is told, and on stderr of each desk that has no other backend."""
    print_disabled({'name': 'claude', 'desks_waiting': ['main', 'options']})
    print_enabled({'name': 'claude', 'changed': True, 'state': 'up'})
    print_enabled({'name': 'claude', 'changed': True, 'state': 'failing'})
    print_enabled({'name': 'claude', 'changed': False, 'state': 'up'})
    out, err = capsys.readouterr()
    assert out.split('\n') == [
        'claude: disabled for every desk; calls that run go on to their end',
        'claude: enabled',
        'claude: enabled; it had failed before, and is tried once its cool-down is over',
        'claude: nothing to do, it is in use',
        '',
    ]
    assert err.split('\n') == [
        'warning: main has no other backend in use: its triggers wait until one is enabled',
        'warning: options has no other backend in use: its triggers wait until one is enabled',
        '',
    ]
