"""Lines of a hundred megabytes: what reading them costs is bounded, in memory and in time."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from trading_agent.json_lines import MAX_LINE_BYTES

ALLOWED = 3 * MAX_LINE_BYTES

READING = """
import sys
from pathlib import Path
from trading_agent import json_lines
from trading_agent.conversation.journal import Journal, verify
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.trigger_log import open_triggers


def most():
    # Of this program alone: getrusage(2) begins with what the one had that started it.
    status = Path('/proc/self/status').read_text()
    return int(status.partition('VmHWM:')[2].split()[0]) << 10


folder = Path(sys.argv[2])
path = folder / '2026-10-19-1.jsonl'
before = most()
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
print(most() - before)
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
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, '-c', READING, how, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    answer, grown = done.stdout.split('\n')[:2]
    assert answer == told
    assert int(grown) < ALLOWED
    assert time.monotonic() - began < 30
