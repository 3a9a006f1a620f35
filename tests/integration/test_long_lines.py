"""Lines of a hundred megabytes: what reading them costs is bounded, in memory and in time."""

from pathlib import Path

import pytest
from memory_growth import grown_by

from trading_agent.json_lines import MAX_LINE_BYTES

ALLOWED = 3 * MAX_LINE_BYTES

PREPARE = """
import sys
from pathlib import Path
from trading_agent import json_lines
from trading_agent.conversation.journal import Journal, verify
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.trigger_log import open_triggers
folder = Path(sys.argv[2])
path = folder / '2026-10-19-1.jsonl'
"""

READING = """
match sys.argv[1]:
    case 'read_whole':
        print(sum(1 for _ in json_lines.read_whole(path)))
    case 'exchanges':
        print(len(SessionStore(folder).exchanges('2026-10-19-1')))
    case 'last exchanges':
        print(len(SessionStore(folder).exchanges('2026-10-19-1', last=9)))
    case 'journal':
        journal = Journal(path)
        journal.close()
        print(len(verify(path).unreadable))
    case 'last turn':
        print(JournalFolder(folder, 'main', None).last_turn('2026-10-19-1'))
    case 'triggers':
        print(len(open_triggers(path)))
"""

EXCHANGE = (
    b'{"trigger_text":"told","answer":"answered","backend_name":"offline","finished_at":"2026-10-19T04:00:00Z"}\n'
)


@pytest.mark.parametrize(
    ('how', 'length', 'told'),
    [
        ('read_whole', 100 << 20, '3'),
        ('read_whole', MAX_LINE_BYTES, '3'),
        ('exchanges', 100 << 20, '2'),
        ('last exchanges', 100 << 20, '2'),
        ('journal', 100 << 20, '3'),
        ('last turn', 100 << 20, 'None'),
        ('triggers', 100 << 20, '0'),
    ],
)
def test_what_a_long_line_costs(tmp_path: Path, how: str, length: int, told: str) -> None:
    """A line of 100 MB costs seconds, and less than three of the longest lines; the lines around it are read."""
    with (tmp_path / '2026-10-19-1.jsonl').open('wb') as file:
        # Characters that take four bytes each in memory as soon as somebody decodes them.
        file.write(EXCHANGE + '{"trigger_text":"🙂'.encode())
        left = length - len('{"trigger_text":"🙂'.encode())
        while left:
            left -= file.write(b'x' * min(left, 1 << 20))
        file.write(b'\n' + EXCHANGE)
    answer, grown = grown_by(PREPARE, READING, how, tmp_path)
    assert answer == told
    assert grown < ALLOWED
