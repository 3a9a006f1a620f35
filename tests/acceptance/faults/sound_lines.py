"""What any reader must be able to read in a file of JSON lines, read without any of the program's code."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

Verdict = Literal['sound', 'altered', 'damaged']


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < 4000 else math.inf


def read(line: bytes) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Reads a line as JSON.

    Raises:
        ValueError, RecursionError: It is none.
    """
    return json.loads(line.decode(), parse_int=_integer)


def verdict(path: str, line: bytes, before: Counter[bytes]) -> Verdict:
    """Says of a line whether it must be read, must be told as damaged, or may be either."""
    if line in before:
        return 'sound'
    try:
        document = read(line)
    except (ValueError, RecursionError):
        return 'altered' if line.startswith(b'\xef\xbb\xbf') or is_odd_in_a_name(line) else 'damaged'
    if not isinstance(document, dict):
        return 'damaged'
    if re.search(rb'\d{4000}', line):
        return 'altered'  # not every reader takes such a number
    needed = ('trigger_text', 'answer', 'backend_name', 'finished_at')
    if '/sessions/' in path and all(isinstance(document.get(name), str) for name in needed):
        return 'sound'
    return 'altered'


def is_odd_in_a_name(line: bytes) -> bool:
    """Whether all that is wrong with a line is a name in it that is no text: unknown ones are passed over."""
    text = re.sub(r'[\x00-\x1f]', '\ufffd', line.decode(errors='replace'))
    try:
        document = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return False
    return '\ufffd' not in str(list(_values(document)))


def _values(document: Any) -> Iterator[Any]:  # noqa: ANN401 - whatever JSON holds
    for item in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from _values(item) if isinstance(item, dict | list) else [item]


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """Returns the lines that are not blank, with their numbers."""
    return [(number, line) for number, line in enumerate(data.split(b'\n'), 1) if line.strip()]
