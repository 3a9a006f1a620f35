"""How the bytes of a file are damaged: by a disk, by a crash, by another program, by a hand that slips."""

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hypothesis import strategies as st

How = Literal[
    'empty', 'missing', 'cut', 'cut out', 'flip', 'insert', 'overwrite', 'a long line', 'line before',
    'instead of a line', 'line twice', 'lines swapped', 'lines joined', 'value', 'no key', 'odd key', 'key twice',
]  # fmt: skip

DEEP = 200_000
LONG = 100 << 20
"""How long a long line is, in bytes."""

PIECES: Mapping[str, bytes] = {
    'NUL': b'\0',
    'a block of NULs': b'\0' * 4096,
    'a byte order mark': b'\xef\xbb\xbf',
    'a bad byte': b'\xff',
    'half a character': b'\xe2\x82',
    'surrogate bytes': b'\xed\xa0\x80\xed\xb0\x80',
    'a surrogate escape': b'\\ud800',
    'U+2028': '\u2028'.encode(),
    'U+2029': '\u2029'.encode(),
    'U+0085': '\x85'.encode(),
    'a carriage return': b'\r',
    'a vertical tab': b'\x0b',
    'a form feed': b'\x0c',
    'a file separator': b'\x1c',
    'a newline': b'\n',
    'a blank line': b'\n \t\r\n',
    'a quote': b'"',
    'a backslash': b'\\',
    'a brace': b'}',
    'open brackets': b'[' * DEEP,
    'open braces': b'{"a":' * DEEP,
    'brackets': b'[' * DEEP + b']' * DEEP,
    'a number': b'1e999',
    'an object': b'{"type":"from the future","version":"x"}',
    'a rule': b'---\nname: [\n',
}
"""What is put into a file, by name."""

VALUES: Mapping[str, str] = {
    'too large for a float': '1e999',
    'too small for a float': '-1e999',
    'four hundred digits': '1' + '0' * 400,
    'five thousand digits': '1' + '0' * 5000,
    'below zero': '-1',
    'beyond 64 bits': str(1 << 64),
    'beyond 63 bits': str(1 << 63),
    'a fraction': '0.5',
    'NaN': 'NaN',
    'Infinity': '-Infinity',
    'true': 'true',
    'null': 'null',
    'no text': '""',
    'a list': '[]',
    'an object': '{}',
    'a lone surrogate': '"x\\ud800y"',
    'a path': '"../../../../etc/passwd"',
    'a path of another kind': '"/tmp/planted\\u0000x"',
    'no date': '"2026-13-45T25:61:00Z"',
    'the last instant': '"9999-12-31T23:59:59.999999-12:00"',
    'the first instant': '"0001-01-01T00:00:00+14:00"',
    'no zone': '"2026-03-10T10:00:00"',
    'much text': json.dumps('₹' * 5000),
    'deep': '[' * DEEP + ']' * DEEP,
}
"""What is put in the place of a JSON value, by name."""


@dataclass(frozen=True)
class Damage:
    """What happens to one file.

    Attributes:
        path: The file.
        how: What is done.
        place: Where: 0 is its first byte, line or value, 1 its last.
        what: What is put there, by its name in `PIECES` or `VALUES`; empty where nothing is.
        size: How much is taken away, in bytes; or the number of the bit.
    """

    path: str
    how: How
    place: float = 0.0
    what: str = ''
    size: int = 1

    def of(self, data: bytes) -> bytes | None:
        """Returns what becomes of a file; None where it is gone."""
        if self.how in ('empty', 'missing'):
            return b'' if self.how == 'empty' else None
        if self.how in ('value', 'no key', 'odd key', 'key twice'):
            return self._in_json(data)
        if 'line' in self.how:
            return self._in_lines(data)
        return self._in_bytes(data, min(len(data), round(self.place * len(data))), PIECES.get(self.what, b''))

    def _in_bytes(self, data: bytes, at: int, piece: bytes) -> bytes:
        match self.how:
            case 'cut':
                return data[:at]
            case 'cut out':
                return data[:at] + data[at + self.size :]
            case 'insert':
                return data[:at] + piece + data[at:]
            case 'overwrite':
                return data[:at] + piece + data[at + len(piece) :]
            case _:
                flipped = bytearray(data)
                if at < len(data):
                    flipped[at] ^= 1 << self.size % 8
                return bytes(flipped)

    def _in_lines(self, data: bytes) -> bytes:
        lines = data.removesuffix(b'\n').split(b'\n')
        at = self._at(len(lines))
        match self.how:
            case 'line before':
                lines.insert(at, PIECES[self.what])
            case 'instead of a line':
                lines[at] = PIECES[self.what]
            case 'a long line':
                lines.insert(at, b'{"type":"' + b'x' * LONG)
            case 'line twice':
                lines.insert(at, lines[at])
            case 'lines swapped':
                lines[at - 1], lines[at] = lines[at], lines[at - 1]
            case _:
                lines[at : at + 2] = [b''.join(lines[at : at + 2])]
        return b'\n'.join([*lines, b''])

    def _at(self, count: int) -> int:
        return min(count - 1, int(self.place * count))

    def _in_json(self, data: bytes) -> bytes:
        """Changes one value or key of the file, or of one of its lines; the rest of it is left as it is."""
        with suppress(ValueError, RecursionError):
            return _changed(data, self)
        lines = data.split(b'\n')
        at = self._at(len(lines))
        with suppress(ValueError, RecursionError):  # of what was damaged before, nothing more is made
            lines[at] = _changed(lines[at], self)
        return b'\n'.join(lines)


_MARK = '\ufdd0'
"""A character that stands in no text: it marks where a value is to go."""


def _changed(line: bytes, damage: Damage) -> bytes:
    document = json.loads(line)
    places = list(_places(document))
    if not places:
        return line
    holder, key = places[random.Random(f'{damage.place}').randrange(len(places))]  # noqa: S311 - the same for the same
    value = VALUES[damage.what]
    match damage.how:
        case 'no key':
            del holder[key]
        case 'odd key':
            holder[_MARK] = 0
        case 'key twice':
            holder[f'{_MARK}{key}'] = 0
        case _:
            holder[key] = _MARK
    text = json.dumps(document, ensure_ascii=False, separators=(',', ':'), indent=2 if b'\n' in line.strip() else None)
    text = text.replace(f'"{_MARK}"', value) if damage.how == 'value' else text
    text = text.replace(f'"{_MARK}":0', f'"odd":{value}').replace(f'"{_MARK}{key}":0', f'{json.dumps(key)}:{value}')
    return text.encode() + (b'\n' if line.endswith(b'\n') else b'')


def _places(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Yields each object of a document with each of its keys, those within it too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, key
            yield from _places(item)
    elif isinstance(value, list):
        for item in value:
            yield from _places(item)


def damages(paths: Sequence[str]) -> st.SearchStrategy[list[Damage]]:
    """Returns what can happen to these files at once: to one of them, as a rule."""
    places = st.floats(0, 1) | st.sampled_from([0.0, 0.999999, 1.0])
    with_pieces = st.builds(
        Damage,
        st.sampled_from(paths),
        st.sampled_from(['insert', 'insert', 'overwrite', 'line before', 'instead of a line']),
        places,
        st.sampled_from(sorted(PIECES)),
    )
    in_json = st.builds(
        Damage,
        st.sampled_from(paths),
        st.sampled_from(['value', 'value', 'odd key', 'key twice', 'no key']),
        places,
        st.sampled_from(sorted(VALUES)),
    )
    others = ('value', 'no key', 'odd key', 'key twice', 'insert', 'overwrite', 'line before', 'instead of a line')
    bare: list[How] = [how for how in get_args(How) if how not in (*others, 'a long line')]
    plain = st.builds(Damage, st.sampled_from(paths), st.sampled_from(bare), places, st.just(''), st.integers(1, 64))
    return st.lists(with_pieces | in_json | plain, min_size=1, max_size=3)


def spoil(root: Path, done: Sequence[Damage]) -> dict[str, bytes | None]:
    """Damages files, and returns what they hold now; None for one that is gone."""
    now: dict[str, bytes | None] = {}
    for damage in done:
        path = root / damage.path
        data = damage.of(path.read_bytes()) if path.exists() else None
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)
        now[damage.path] = data
    return now
