"""Which workspace `run` would choose, found without what checking a whole configuration costs.

A client must answer quickly, and must find its daemon also after somebody has spoilt the file that it was started
with. So only the file's `workspace` is read here; the rules are those of `trading_agent.config.load`.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trading_agent.errors import ConfigurationError, Problem

CONFIG_PLACES = (Path('trading-agent.toml'), Path('/etc/trading-agent/trading-agent.toml'))
DEFAULT_WORKSPACE = Path('workspace')
STATE_FOLDER = Path('/var/lib/trading-agent')
"""Where a daemon that systemd runs has its workspace."""


def chosen_workspace(
    config: Path | None = None, workspace: Path | None = None, environ: Mapping[str, str] | None = None
) -> Path:
    """Returns the workspace that `run` would choose.

    Args:
        config: The file named on the command line, or None.
        workspace: The workspace named on the command line, or None.
        environ: The environment; None for the process's own.

    Raises:
        ConfigurationError: The file cannot be read or is not TOML.
    """
    environ = os.environ if environ is None else environ
    named = workspace or environ.get('TRADING_AGENT_WORKSPACE')
    if named:
        return Path(named)
    file = config or environ.get('TRADING_AGENT_CONFIG') or next(filter(_is_there, CONFIG_PLACES), None)
    from_file = None if file is None else _workspace_in(Path(file))
    return from_file or Path(environ.get('STATE_DIRECTORY', '').split(':')[0] or DEFAULT_WORKSPACE)


def workspace_with_records(config: Path | None, workspace: Path | None) -> Path:
    """Returns the workspace whose files are to be shown.

    The named one alone, or else the one that `run` would choose, or where that has no desks, the one of systemd.

    Raises:
        ConfigurationError: The file cannot be read or is not TOML.
    """
    if workspace is not None:
        return workspace
    chosen = chosen_workspace(config)
    with suppress(OSError):
        if not (chosen / 'desks').is_dir() and (STATE_FOLDER / 'desks').is_dir():
            return STATE_FOLDER
    return chosen


def _is_there(place: Path) -> bool:
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # but not ours to look at: reading it will say so
    return True


def _workspace_in(file: Path) -> Path | None:
    import tomllib

    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigurationError([Problem(str(file), f'cannot be read: {error.strerror}')]) from error
    try:
        value = tomllib.loads(data.decode('utf-8-sig')).get('workspace')
    except (ValueError, RecursionError) as error:
        # A daemon that was started with the file before it was spoilt runs on, and must be found all the same.
        line = re.search(rb'^\s*workspace\s*=\s*"([^"\\]+)"', data.partition(b'\n[')[0], re.MULTILINE)
        if line is None:
            raise ConfigurationError([Problem(str(file), f'is not TOML: {error}')]) from error
        value = os.fsdecode(line[1])
    return file.parent / value if value and isinstance(value, str) else None
