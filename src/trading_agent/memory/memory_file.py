"""Memory.md: the lessons that last, folded anew at each rollover and never written over a person's edit."""

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path

from trading_agent import files
from trading_agent.errors import TradingAgentError
from trading_agent.memory.session_state import split_session_id
from trading_agent.trigger import storable


class MemoryEdited(TradingAgentError):
    """Raised when Memory.md is no longer the text that a new one was made from: make it again from the new text."""


@dataclass(frozen=True)
class MemoryText:
    """Memory.md as it was read.

    Attributes:
        text: The text; empty where there is no file. Bytes that are not UTF-8 show as U+FFFD.
        digest: SHA-256 of the bytes, in hexadecimal.
    """

    text: str
    digest: str


class MemoryFile:
    """One desk's Memory.md and its history. All methods block on the disk.

    Args:
        folder: The desk's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / 'Memory.md'
        self._history = folder / 'memory_history'

    def read(self) -> MemoryText:
        """Returns the text of now.

        Raises:
            StorageError: It is there and cannot be read.
        """
        data = files.read(self.path) or b''
        return MemoryText(data.decode('utf-8-sig', errors='replace'), _digest(data))

    def replace(self, session_id: str, text: str, made_from: str) -> bool:
        """Puts a new text in place of the one that it was made from; the old one goes to the history first.

        A session that is folded in a second time, by a summary that came late, keeps what it replaces then as
        `<session_id>.2.md` and so on.

        Args:
            session_id: The session whose lessons were folded in: it names the old text's file in the history.
            text: The new text.
            made_from: The digest of the text that the new one was made from.

        Returns:
            Whether anything was changed; False when the file has this text already.

        Raises:
            MemoryEdited: Somebody changed the file meanwhile. Nothing was written.
            StorageError: It could not be written; the old text stays.
        """
        split_session_id(session_id)
        data = (storable(text).strip() + '\n').encode()
        old = files.read(self.path) or b''
        if _digest(old) == _digest(data):
            files.sync_folder(self.path.parent)  # it may be here by a replacement whose last step failed
            return False
        self._expect(old, made_from)
        self._keep(session_id, old)
        files.replace(self.path, data, check=lambda: self._expect(files.read(self.path) or b'', made_from))
        return True

    def _expect(self, data: bytes, made_from: str) -> None:
        if _digest(data) != made_from:
            raise MemoryEdited(f'{self.path} was changed while a new text was made from the old one')

    def _keep(self, session_id: str, old: bytes) -> None:
        files.make_folder(self._history)
        for number in itertools.count(1):
            path = self._history / (f'{session_id}.md' if number == 1 else f'{session_id}.{number}.md')
            kept = files.read(path)
            if kept is None:
                files.replace(path, old)
            if kept is None or kept == old:
                return


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
