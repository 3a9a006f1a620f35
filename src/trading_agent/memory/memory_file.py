"""Memory.md: the lessons that last, folded anew at each rollover and never written over a person's edit."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trading_agent import files
from trading_agent.errors import TradingAgentError
from trading_agent.memory.damage import Damage, DamageReport
from trading_agent.memory.memory_history import FoldedText, MemoryChange, MemoryHistory
from trading_agent.memory.session_state import split_session_id
from trading_agent.trigger import storable


class MemoryEdited(TradingAgentError):
    """Raised when Memory.md is no longer the text that a new one was made from: make it again from the new text."""


class NoSuchFold(TradingAgentError):
    """Raised when a session has changed nothing in Memory.md."""


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
        now: Returns the time, for the history.
        on_damage: Is told of each damaged part once; None logs it.
    """

    def __init__(
        self,
        folder: Path,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self.path = folder / 'Memory.md'
        self._damage = DamageReport(on_damage)
        self._history = MemoryHistory(folder, now, self._damage)

    def read(self) -> MemoryText:
        """Returns the text of now.

        Raises:
            StorageError: It is there and cannot be read.
        """
        data = files.read(self.path) or b''
        return MemoryText(self._damage.text_of(self.path, data), _digest(data))

    def has(self, text: str) -> bool:
        """Returns whether a new text stands in the file, and nothing else.

        Raises:
            StorageError: It is there and cannot be read.
        """
        return files.read(self.path) == _stored(text)

    def replace(self, session_id: str, text: str, made_from: str, reasons: str = '') -> bool:
        """Puts a new text in place of the one that it was made from; the old one goes to the history first.

        A session that is folded in a second time, by a summary that came late, keeps what it replaces then as
        `<session_id>.2.md` and so on.

        Args:
            session_id: The session whose lessons were folded in: it names the old text's file in the history.
            text: The new text.
            made_from: The digest of the text that the new one was made from.
            reasons: Why it was changed so, for the history.

        Returns:
            Whether anything was changed; False when the file has this text already.

        Raises:
            MemoryEdited: Somebody changed the file meanwhile. Nothing was written.
            StorageError: It could not be written; the old text stays.
        """
        split_session_id(session_id)
        data = _stored(text)
        old = files.read(self.path) or b''
        if _digest(old) == _digest(data):
            files.sync_folder(self.path.parent)  # it may be here by a replacement whose last step failed
            return False
        self._expect(old, made_from)
        kept = self._history.keep(session_id, old)
        self._history.record('folded', session_id, before=made_from, after=_digest(data), kept=kept, why=reasons)
        self._put(data, made_from)
        return True

    def _put(self, data: bytes, made_from: str) -> None:
        files.replace(self.path, data, check=lambda present: self._expect(present or b'', made_from))

    def _expect(self, data: bytes, made_from: str) -> None:
        if _digest(data) != made_from:
            raise MemoryEdited(
                f'{self.path} was changed while a new text was made from the old one', 'nothing was written: try again'
            )

    def keep_refused(self, session_id: str, text: str, made_from: str, why: str) -> Path:
        """Keeps a new text that was not taken, so that a person can take from it what is right.

        Returns:
            The file that it is in.

        Raises:
            StorageError: It could not be written.
        """
        split_session_id(session_id)
        data = _stored(text)
        kept = self._history.keep(f'{session_id}.refused', data)
        self._history.record('refused', session_id, before=made_from, after=_digest(data), kept=kept, why=why)
        return self._history.folder / kept

    def changes(self) -> list[MemoryChange]:
        """Returns what was done to the file, oldest first.

        Raises:
            StorageError: The history cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        return self._history.changes()

    def folds(self, session_id: str) -> list[FoldedText]:
        """Returns what the folds of a session changed, oldest first.

        Raises:
            NoSuchFold: It changed nothing.
            StorageError: The file or its history cannot be read.
        """
        found = self._history.folds(session_id, files.read(self.path) or b'', _digest)
        if not found:
            raise self._no_fold(session_id)
        return found

    def restore(self, session_id: str, by: str) -> str | None:
        """Puts the text back that stood here before a session was folded in. The one of now goes to the history.

        A running daemon needs not be stopped: a fold that it is making meanwhile is made again from this text.

        Args:
            session_id: The session.
            by: Who wants it.

        Returns:
            The file in the history that has the text of now, or None when it is the same text.

        Raises:
            NoSuchFold: The session changed nothing.
            MemoryEdited: Somebody changed the file in this very moment. Nothing was written.
            StorageError: It could not be written; the text of now stays.
        """
        folds = (change for change in self.changes() if change.kind == 'folded' and change.session_id == session_id)
        data = next(self._history.texts(folds), None)
        if data is None:
            raise self._no_fold(session_id)
        present = files.read(self.path) or b''
        if present == data:
            return None
        kept = self._history.keep(f'before-restore-of-{session_id}', present)
        self._history.record('restored', session_id, before=_digest(present), after=_digest(data), kept=kept, by=by)
        self._put(data, _digest(present))
        return kept

    def _no_fold(self, session_id: str) -> NoSuchFold:
        known = list(dict.fromkeys(change.session_id for change in self.changes() if change.kind == 'folded'))
        hint = f'there is {", ".join(known[:-11:-1])}' if known else 'no session has been folded in yet'
        return NoSuchFold(f'{session_id!r} has changed nothing in {self.path}', hint)


def _stored(text: str) -> bytes:
    return (storable(text).strip() + '\n').encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
