"""Whatever is written as a line of JSON is one line for every reader, and is read back as it was."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import json_lines
from trading_agent.trigger import storable

# What ends a line for one reader or another, what JSON escapes, and what UTF-8 cannot hold.
ODD = '\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00\x7f"\\\ufeff\ufffd\ud800\udc00\udfff🙂'
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=())), max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def plain(value: object) -> object:
    """Returns a value as a file can hold it."""
    if isinstance(value, dict):
        return {storable(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return storable(value) if isinstance(value, str) else value


@given(fields=st.dictionaries(TEXTS, VALUES, max_size=4))
@settings(deadline=None, max_examples=300)
def test_any_text_round_trips(fields: dict[str, object]) -> None:
    """A record is one line, also for a reader that splits at every Unicode line end, and says what was put in."""
    line = json_lines.encode(fields)
    assert line.endswith(b'\n')
    assert line.decode().splitlines(keepends=True) == [line.decode()]
    # Two keys may become one: the later one holds, as in any reader.
    assert json.loads(line) == plain(fields)
    assert msgspec.json.decode(line) == json.loads(line)
