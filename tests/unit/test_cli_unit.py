"""What `check` reads from the systemd unit."""

from pathlib import Path

import pytest

from trading_agent.cli.unit import parse_span, read_unit

UNIT = """
[Unit]
TimeoutStopSec=5
# a comment
[Service]
; TimeoutStopSec=6
Type=notify
TimeoutStopSec = 1min 30s
LoadCredential=model-key:/etc/keys/model-key
SetCredentialEncrypted=other-key: \\
    abc=
ImportCredential=third-key
[Install]
TimeoutStopSec=7
"""


@pytest.mark.parametrize(
    ('text', 'seconds'),
    [
        ('90', 90.0),
        ('90s', 90.0),
        ('1min 30s', 90.0),
        ('1min30s', 90.0),
        ('1.5 minutes', 90.0),
        ('2h', 7200.0),
        ('500ms', 0.5),
        ('infinity', float('inf')),
        ('0', 0.0),
        ('', None),
        ('soon', None),
        ('5 parsecs', None),
        ('90 s later', None),
    ],
)
def test_a_span_is_read_as_systemd_writes_it(text: str, seconds: float | None) -> None:
    """Numbers with the usual units add up, a bare one is seconds, and what is none of these is not guessed at."""
    assert parse_span(text) == (None if seconds is None else pytest.approx(seconds))


def test_a_unit_is_read_from_its_service_section(tmp_path: Path) -> None:
    """Only [Service] counts, without comments; credentials are known by their names."""
    path = tmp_path / 'trading-agent.service'
    path.write_text(UNIT)
    unit = read_unit(path)
    assert unit is not None
    assert unit.stop_timeout() == (path, 90.0)
    assert unit.credentials() == {'model-key', 'other-key'}


def test_drop_ins_come_after_the_unit_in_their_order(tmp_path: Path) -> None:
    """The last assignment counts, and it is told in which file it is; zero turns the time-out off."""
    path = tmp_path / 'trading-agent.service'
    path.write_text('[Service]\nTimeoutStopSec=90\n')
    folder = tmp_path / 'trading-agent.service.d'
    folder.mkdir()
    (folder / '20-late.conf').write_text('[Service]\nTimeoutSec=20\n')
    (folder / '10-early.conf').write_text('[Service]\nTimeoutStopSec=10\n')
    (folder / 'README').write_text('[Service]\nTimeoutStopSec=1\n')
    unit = read_unit(path)
    assert unit is not None
    assert unit.stop_timeout() == (folder / '20-late.conf', 20.0)
    (folder / '30-odd.conf').write_text('[Service]\nTimeoutStopSec=whenever\n')
    (folder / '40-off.conf').write_text('[Service]\nTimeoutStopSec=0\n')
    unit = read_unit(path)
    assert unit is not None
    assert unit.stop_timeout() == (folder / '40-off.conf', float('inf'))


def test_a_unit_that_says_nothing_has_the_default(tmp_path: Path) -> None:
    """Without an assignment systemd's own 90 s hold; a unit that is not there is none."""
    path = tmp_path / 'trading-agent.service'
    assert read_unit(path) is None
    path.write_text('[Service]\nType=notify\n')
    unit = read_unit(path)
    assert unit is not None
    assert unit.stop_timeout() == (None, 90.0)
    path.write_bytes(b'\xff')
    assert read_unit(path) is None
