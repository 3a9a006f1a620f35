"""What a desk has on disk, read plainly and not by the code that is tested."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class DeskFiles:
    """A desk's files, read plainly and not by the code that is tested.

    Args:
        folder: The desk's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def session_ids(self) -> list[str]:
        """Returns the sessions that have a log, oldest first."""
        found = [path.stem for path in (self.folder / 'sessions').glob('*.jsonl')]
        return sorted(found, key=lambda session_id: (session_id[:10], int(session_id[11:])))

    def session(self, session_id: str) -> list[Line]:
        """Returns a session's exchanges, oldest first."""
        return _json_lines(self.folder / 'sessions' / f'{session_id}.jsonl')

    def exchanges(self) -> list[Line]:
        """Returns the exchanges of all sessions, oldest first."""
        return [exchange for session_id in self.session_ids() for exchange in self.session(session_id)]

    def answered(self) -> list[str]:
        """Returns the trigger ids of all exchanges, oldest first."""
        return [exchange['trigger_id'] for exchange in self.exchanges()]

    def summary(self, day: str) -> str:
        """Returns a day's summary, empty where there is none."""
        path = self.folder / 'sessions' / 'summaries' / f'{day}.md'
        return path.read_text() if path.exists() else ''

    def summaries(self) -> list[str]:
        """Returns the days that have a summary, oldest first."""
        return sorted(path.stem for path in (self.folder / 'sessions' / 'summaries').glob('*.md'))

    def state(self) -> Line:
        """Returns the session state."""
        state: Line = json.loads((self.folder / 'sessions' / 'state.json').read_text())
        return state

    def records(self, kind: str) -> list[Line]:
        """Returns the records of a kind in triggers.jsonl."""
        return [record for record in _json_lines(self.folder / 'triggers.jsonl') if record['type'] == kind]

    def outcomes(self) -> dict[str, str]:
        """Returns the outcome of each closed trigger, the archived ones too."""
        paths = [*sorted((self.folder / 'triggers').glob('*.jsonl')), self.folder / 'triggers.jsonl']
        records = [record for path in paths for record in _json_lines(path) if record['type'] == 'closed']
        return {record['id']: record['outcome'] for record in records}


def _json_lines(path: Path) -> list[Line]:
    """Returns the records of a file: a line that a kill tore stays in it, and is none."""
    records: list[Line] = []
    for line in path.read_bytes().split(b'\n'):
        with suppress(ValueError):
            records.append(json.loads(line))
    return records
