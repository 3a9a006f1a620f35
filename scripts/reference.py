"""Makes the reference parts of README.md from the code: configuration tables and the catalogue of events."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from trading_agent.event_catalog import catalog
from trading_agent.settings import Backend, ClaudeCodeOptions, Component, Desk, File, ModelOptions, OfflineOptions
from trading_agent.units import Duration, Size, TimeOfDay

README = Path(__file__).parents[1] / 'README.md'

TABLES: list[tuple[str, type[msgspec.Struct]]] = [
    ('At the top of the file', File),
    ('`[backends.NAME]`', Backend),
    ('`[backends.NAME]` with `kind = "anthropic"` or `"openai_compatible"`', ModelOptions),
    ('`[backends.NAME]` with `kind = "claude_code"`', ClaudeCodeOptions),
    ('`[backends.NAME]` with `kind = "offline"`', OfflineOptions),
    ('`[[desks]]`', Desk),
    ('`[[components]]`', Component),
]


def meanings(table: type) -> dict[str, str]:
    """Returns what the docstring of a table says of each key."""
    found: list[tuple[str, str]] = []
    for kind in reversed(table.__mro__):
        text = (kind.__doc__ or '').partition('Attributes:')[2]
        found += re.findall(r'^ {8}(\w+): (.*(?:\n {12}.*)*)', text, re.MULTILINE)
    return {name: ' '.join(meaning.split()) for name, meaning in found}


def written(value: Any) -> str:  # noqa: ANN401 - any default
    """Returns a default as it is written in the file."""
    if value is msgspec.NODEFAULT:
        return '-'
    if isinstance(value, Duration):
        return f'`{value:g}s`'
    if isinstance(value, TimeOfDay):
        minutes = int(value.total_seconds()) // 60
        return f'`{minutes // 60:02}:{minutes % 60:02}`'
    if isinstance(value, Size):
        return f'`{value >> 20}MiB`'
    if isinstance(value, bool):
        return f'`{str(value).lower()}`'
    if value is None:
        return 'none'
    return f'`{value}`'.replace("'", '"')


def configuration() -> str:
    """Returns the tables of configuration keys."""
    parts = []
    for title, table in TABLES:
        meaning = meanings(table)
        rows = []
        for field in msgspec.structs.fields(table):
            if table is File and field.name in {'backends', 'desks', 'components'}:
                continue
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            key = '…' if table is Backend and field.name == 'options' else field.name
            rows.append(f'| `{key}` | {written(default)} | {meaning[field.name]} |')
        parts.append('\n'.join([f'{title}:', '', '| key | default | |', '|---|---|---|', *rows]))
    return '\n\n'.join(parts)


def events() -> str:
    """Returns the catalogue of events as a table."""
    rows = []
    for entry in catalog():
        fields = entry['fields']
        assert isinstance(fields, dict)
        own = ', '.join(f'`{name}`' for name in fields if name not in {'desk', 'session_id', 'trading_date'})
        rows.append(f'| `{entry["event"]}` | {entry["level"]} | {entry["about"]} | {own} |')
    return '\n'.join(['| event | level | | fields |', '|---|---|---|---|', *rows])


def made(text: str) -> str:
    """Returns the README with its reference parts made anew."""
    for name, make in (('configuration', configuration), ('events', events)):
        begin, end = f'<!-- made by scripts/reference: {name} -->', f'<!-- end of {name} -->'
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f'{before}{begin}\n\n{make()}\n\n{end}{after}'
    return text


def main() -> int:
    """Writes or checks; returns the exit code."""
    old = README.read_text()
    new = made(old)
    if '--check' in sys.argv[1:]:
        if old != new:
            print('README.md differs from the code: run scripts/reference', file=sys.stderr)
        return int(old != new)
    README.write_text(new)
    return 0


if __name__ == '__main__':
    sys.exit(main())
