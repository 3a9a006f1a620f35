"""Every session id that a desk has ever given out, so that an archived log's id is not used again."""

from pathlib import Path

from trading_agent import files
from trading_agent.memory.damage import DamageReport
from trading_agent.memory.session_state import is_session_id


class SessionIds:
    """`.session-ids` in a sessions folder. All methods block on the disk.

    Args:
        directory: The folder.
        damage: Is told of lines that are no id.
    """

    def __init__(self, directory: Path, damage: DamageReport) -> None:
        self._path = directory / '.session-ids'
        self._damage = damage
        self._unsure = ''  # what could not be written, and maybe not be taken back either

    def read(self) -> list[str]:
        """Returns the ids, in the order in which they were given out; a line that is none is left out and told.

        Raises:
            StorageError: The file is there and cannot be read.
        """
        found = []
        for number, line in enumerate((files.read(self._path) or b'').decode(errors='replace').split('\n'), 1):
            if is_session_id(line):
                found.append(line)
            elif line.strip():
                self._damage.tell(self._path, number, f'{line[:100]!r} is no session id')
        return found

    def record(self, session_id: str) -> None:
        """Writes an id down, durably, unless it is there for certain.

        Raises:
            StorageError: It could not be written.
        """
        if session_id == self._unsure or session_id not in self.read():
            self._unsure = session_id
            files.append(self._path, f'{session_id}\n'.encode(), once=True)
            self._unsure = ''
