"""The daemon's systemd unit as far as `check` looks at it: plain files, read without systemd."""

import re
from collections.abc import Iterator
from pathlib import Path

UNIT = Path('/etc/systemd/system/trading-agent.service')
DEFAULT_STOP_SECONDS = 90.0
"""What a unit has that says nothing (DefaultTimeoutStopSec=, systemd-system.conf(5))."""

_UNITS = {
    'us': 1e-6,
    'ms': 1e-3,
    '': 1.0,
    's': 1.0,
    'sec': 1.0,
    'second': 1.0,
    'seconds': 1.0,
    'm': 60.0,
    'min': 60.0,
    'minute': 60.0,
    'minutes': 60.0,
    'h': 3600.0,
    'hr': 3600.0,
    'hour': 3600.0,
    'hours': 3600.0,
    'd': 86400.0,
    'day': 86400.0,
    'days': 86400.0,
}
_CREDENTIAL = re.compile(r'(?:Load|Set)Credential(?:Encrypted)?')


class Unit:
    """What the unit and its drop-ins say in [Service].

    Args:
        settings: Each assignment: the file, the key and the value, in the order in which systemd reads them.
    """

    def __init__(self, settings: list[tuple[Path, str, str]]) -> None:
        self._settings = settings

    def stop_timeout(self) -> tuple[Path | None, float]:
        """Returns where the time for a stop is set, or None, and how many seconds it is; it may be infinite."""
        found: tuple[Path | None, float] = (None, DEFAULT_STOP_SECONDS)
        for path, key, value in self._settings:
            seconds = parse_span(value) if key in ('TimeoutStopSec', 'TimeoutSec') else None
            if seconds is not None:
                # Zero turns the time-out off, see systemd.service(5).
                found = path, seconds or float('inf')
        return found

    def credentials(self) -> set[str]:
        """Returns the names of the credentials that the daemon is given."""
        return {value.partition(':')[0].strip() for _, key, value in self._settings if _CREDENTIAL.fullmatch(key)}


def read_unit(path: Path) -> Unit | None:
    """Reads the unit with its drop-ins; None where it is not there, or not ours to read."""
    drop_ins = path.with_name(f'{path.name}.d')
    try:
        files = [path, *sorted(drop_ins.glob('*.conf'))]
        return Unit([(file, *setting) for file in files for setting in _service_settings(file.read_text('utf-8'))])
    except (OSError, ValueError):
        return None


def _service_settings(text: str) -> Iterator[tuple[str, str]]:
    section = ''
    for line in map(str.strip, re.sub(r'\\\n', ' ', text).split('\n')):
        if line.startswith('['):
            section = line
        elif section == '[Service]' and '=' in line and not line.startswith(('#', ';')):
            key, _, value = line.partition('=')
            yield key.strip(), value.strip()


def parse_span(text: str) -> float | None:
    """Reads a span of time as systemd.time(7) writes it, such as `90`, `1min 30s` or `infinity`; None for another."""
    if text == 'infinity':
        return float('inf')
    parts = re.findall(r'(\d+(?:\.\d+)?)\s*([a-z]*)', text)
    if not parts or re.sub(r'(\d+(?:\.\d+)?)\s*([a-z]*)\s*', '', text) or any(unit not in _UNITS for _, unit in parts):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
