"""The configuration: one TOML file, every key checked before anything starts.

A mistake is told with the file, the key and the nearest valid key. Durations are written like `500ms`, `30s`,
`10m`, `2h`; sizes like `64KiB`, `1MiB`.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from trading_agent.errors import ConfigurationError, Problem
from trading_agent.plug_in import NAME as PLUG_IN
from trading_agent.settings import (
    DEFAULT_WORKSPACE,
    RANGES,
    Backend,
    ClaudeCodeOptions,
    Common,
    Component,
    Config,
    Desk,
    File,
    LogLevel,
    ModelOptions,
    OfflineOptions,
    Table,
)
from trading_agent.units import EXAMPLES, Duration, Size, TimeOfDay

__all__ = [
    'Backend',
    'ClaudeCodeOptions',
    'Component',
    'Config',
    'Desk',
    'LogLevel',
    'ModelOptions',
    'OfflineOptions',
    'find_file',
    'load',
    'parse',
]

T = TypeVar('T')

DESK_NAME = re.compile(r'[a-z0-9][a-z0-9_-]{0,62}')
OPTIONS: dict[str, type[Table]] = {
    'offline': OfflineOptions,
    'anthropic': ModelOptions,
    'openai_compatible': ModelOptions,
    'claude_code': ClaudeCodeOptions,
}
"""The options of each built-in kind of backend."""

BUILT_IN_KINDS = tuple(OPTIONS)
_KINDS = ', '.join([*BUILT_IN_KINDS, 'package.module:callable'])

CONFIG_PLACES = (Path('trading-agent.toml'), Path('/etc/trading-agent/trading-agent.toml'))


def find_file(option: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Returns the file that `run` reads.

    That is `--config`, else TRADING_AGENT_CONFIG, else the first usual place that has one, else None for the
    built-in default.
    """
    if option is not None:
        return option
    if environ.get('TRADING_AGENT_CONFIG'):
        return Path(environ['TRADING_AGENT_CONFIG'])
    return next((place for place in CONFIG_PLACES if _is_there(place)), None)


def _is_there(place: Path) -> bool:
    try:
        return bool(place.stat())
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, NotADirectoryError))  # reading it will say what is wrong


def load(option: Path | None = None, workspace: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Reads and checks the configuration.

    The workspace is `workspace`, else TRADING_AGENT_WORKSPACE, else the file's, else $STATE_DIRECTORY (set by
    systemd), else `./workspace`. A relative one in the file is relative to the file's folder.

    Args:
        option: The file named on the command line, or None to look in the usual places.
        workspace: The workspace named on the command line, or None.
        environ: The environment; None for the process's own.

    Raises:
        ConfigurationError: Something in it is wrong.
    """
    environ = os.environ if environ is None else environ
    path = find_file(option, environ)
    config = Config() if path is None else parse(_read(path), path)
    chosen = (
        workspace
        or environ.get('TRADING_AGENT_WORKSPACE')
        or (config.workspace if config.workspace is not DEFAULT_WORKSPACE else None)  # an equal one may be written
        or environ.get('STATE_DIRECTORY', '').split(':')[0]
        or DEFAULT_WORKSPACE
    )
    return msgspec.structs.replace(config, workspace=Path(chosen))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode('utf-8-sig')
    except OSError as error:
        raise ConfigurationError([Problem(str(path), f'cannot be read: {error.strerror}')]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError([Problem(str(path), f'is not UTF-8 (byte {error.start})')]) from error


def parse(text: str, path: Path) -> Config:
    """Checks the text of a configuration file.

    Raises:
        ConfigurationError: Something in it is wrong.
    """
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number with thousands of digits
        raise ConfigurationError([Problem(str(path), f'is not TOML: {error}')]) from error
    unknown = list(_unknown_keys(raw, str(path)))
    if unknown:
        raise ConfigurationError(unknown)
    file = _convert(raw, File, str(path), '')
    if file.workspace is not None and (not file.workspace.strip() or '\0' in file.workspace):
        what = f'{file.workspace!r} is no folder'
        raise ConfigurationError([Problem(f'{path}: workspace', what, 'name one, or remove the key')])
    backends = {'offline': Backend(kind='offline')}
    for name, table in file.backends.items():
        backends[name] = _backend(name, table, path)
    config = Config(
        **{field: getattr(file, field) for field in Common.__struct_fields__},
        workspace=(path.parent / file.workspace) if file.workspace else DEFAULT_WORKSPACE,
        backends=backends,
        desks=file.desks or [Desk(name='main')],
        file=path,
    )
    problems = list(_problems(config, str(path)))
    if problems:
        raise ConfigurationError(problems)
    return config


def _unknown_keys(raw: dict[str, Any], file: str) -> Iterator[Problem]:
    """Yields every key that no table has, so that a file with several is mended in one go."""
    tables: list[tuple[str, type[msgspec.Struct], Any]] = [('', File, raw)]
    for name, rows_kind in (('desks', Desk), ('components', Component)):
        rows = raw.get(name)
        tables += [(f'{name}[{n}].', rows_kind, row) for n, row in enumerate(rows)] if isinstance(rows, list) else []
    for place, kind, table in tables:
        for key in table if isinstance(table, dict) else ():
            if key not in kind.__struct_fields__:
                yield Problem(f'{file}: {place}{key}', 'there is no such key', _nearest(key, kind))


def options_of(backend: Backend, where: str = 'backend') -> Table | None:
    """Returns the checked options of a built-in backend; None for a plug-in, which checks its own.

    Raises:
        ConfigurationError: One of them is wrong.
    """
    kind = OPTIONS.get(backend.kind)
    return _convert(backend.options, kind, where, '') if kind is not None else None


def _backend(name: str, table: object, path: Path) -> Backend:
    where = f'backends.{name}'
    if not isinstance(table, dict):
        raise ConfigurationError([Problem(f'{path}: {where}', 'is no table', f'write [backends.{name}]')])
    options = dict(table)
    kind = options.pop('kind', None)
    if not isinstance(kind, str):
        what = 'is missing' if kind is None else f'is no text: {kind!r}'
        raise ConfigurationError([Problem(f'{path}: {where}.kind', what, f'one of {_KINDS}')])
    backend = Backend(kind=kind, options=options)
    if kind in OPTIONS:
        checked = _convert(options, OPTIONS[kind], str(path), where)
        problems = list(_range_problems(checked, f'{path}: {where}.'))
        if problems:
            raise ConfigurationError(problems)
    elif not PLUG_IN.fullmatch(kind):
        near = difflib.get_close_matches(kind, BUILT_IN_KINDS, 1)
        hint = f'did you mean {near[0]!r}?' if near else f'one of {_KINDS}'
        raise ConfigurationError([Problem(f'{path}: {where}.kind', f'{kind!r} is no kind of backend', hint)])
    return backend


def _problems(config: Config, where: str) -> Iterator[Problem]:
    yield from _range_problems(config, f'{where}: ')
    yield from _component_problems(config.components, where)
    names: set[str] = set()
    for number, desk in enumerate(config.desks):
        place = f'{where}: desks[{number}]'
        yield from _range_problems(desk, f'{place}.')
        if not DESK_NAME.fullmatch(desk.name):
            yield Problem(f'{place}.name', f'{desk.name!r} is no desk name', 'a-z, 0-9, _ and -, at most 63')
        if desk.name in names:
            yield Problem(f'{place}.name', f'a second desk is named {desk.name!r}', 'each desk has its own name')
        names.add(desk.name)
        yield from _backend_problems(desk, config.backends, place)
        for at, server in enumerate(desk.mcp_servers):
            yield from _range_problems(server, f'{place}.mcp_servers[{at}].')


def _component_problems(components: list[Component], where: str) -> Iterator[Problem]:
    names: set[str] = set()
    for number, component in enumerate(components):
        place = f'{where}: components[{number}]'
        if not DESK_NAME.fullmatch(component.name):
            yield Problem(f'{place}.name', f'{component.name!r} is no name', 'a-z, 0-9, _ and -, at most 63')
        if component.name in names:
            yield Problem(f'{place}.name', f'a second component is named {component.name!r}', 'give it another name')
        names.add(component.name)
        if not PLUG_IN.fullmatch(component.entry):
            yield Problem(f'{place}.entry', f'{component.entry!r} names nothing', 'write package.module:callable')


def _backend_problems(desk: Desk, backends: dict[str, Backend], place: str) -> Iterator[Problem]:
    if not desk.backends:
        yield Problem(f'{place}.backends', 'is empty', 'name at least one backend')
    for name in desk.backends:
        if name not in backends:
            near = difflib.get_close_matches(name, backends, 1)
            hint = f'did you mean {near[0]!r}?' if near else f'declare it as [backends.{name}]'
            yield Problem(f'{place}.backends', f'there is no backend {name!r}', hint)
    kinds = [backends[name].kind for name in desk.backends if name in backends]
    if 'offline' in kinds[1:] and any(kind != 'offline' for kind in kinds[: kinds.index('offline', 1)]):
        yield Problem(
            f'{place}.backends',
            '`offline` stands behind a real backend',
            'an alert answered by a stub is not answered: let it wait for the real one',
        )


def _range_problems(table: msgspec.Struct, prefix: str) -> Iterator[Problem]:
    for name in table.__struct_fields__:
        if name in RANGES:
            low, high, told = RANGES[name]
            value = getattr(table, name)
            if not low <= value <= high:
                yield Problem(f'{prefix}{name}', f'is out of range: {value}', told)


def _hook(kind: type, value: object) -> object:
    if kind in (Duration, Size, TimeOfDay):
        if not isinstance(value, str):
            raise ValueError(f'expected text, such as "{EXAMPLES[kind]}", not {value!r}')
        return kind.parse(value)
    raise NotImplementedError(kind)


def _convert(raw: object, kind: type[T], file: str, prefix: str) -> T:
    try:
        return msgspec.convert(raw, kind, dec_hook=_hook)
    except msgspec.ValidationError as error:
        raise ConfigurationError([_explained(str(error), kind, file, prefix)]) from error


def _explained(message: str, kind: type, file: str, prefix: str) -> Problem:
    """Turns msgspec's words, such as "… unknown field `x` - at `$.desks[0]`", into a problem with a hint."""
    what, _, at = message.partition(' - at ')
    place = '.'.join(part for part in (prefix, at.strip('`').removeprefix('$').lstrip('.')) if part)
    unknown = re.search(r'unknown field `(.*)`', what)
    if unknown:
        key = unknown[1]
        hint = _nearest(key, _table_at(place, kind))
        return Problem(f'{file}: {place}.{key}' if place else f'{file}: {key}', 'there is no such key', hint)
    hint = f'one of {", ".join(get_args(LogLevel))}' if what.startswith('Invalid enum value') else ''
    return Problem(f'{file}: {place}' if place else file, what, hint)


def _table_at(place: str, kind: type) -> type:
    return Desk if place.startswith('desks') else Component if place.startswith('components') else kind


def _nearest(key: str, table: type) -> str:
    """Returns what was meant by a key that is not one of a table's: another table's, or one written like it."""
    places = {
        File: 'at the top, before any table',
        Desk: 'under [[desks]]',
        Component: 'under [[components]]',
        OfflineOptions: 'under its backend',
        ModelOptions: 'under its backend',
        ClaudeCodeOptions: 'under its backend',
    }
    for other, place in places.items():
        if other is not table and key in other.__struct_fields__:
            return f'it belongs {place}'
    near = difflib.get_close_matches(key, table.__struct_fields__, 1)  # type: ignore[attr-defined]
    return f'did you mean {near[0]!r}?' if near else 'remove it'
