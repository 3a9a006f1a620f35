"""Every text that Memory.md has had before a fold or a person's restore, and what was done to it, when and why."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from trading_agent import files
from trading_agent.clock import utc_text
from trading_agent.memory.damage import DamageReport
from trading_agent.memory.record_file import RecordFile
from trading_agent.memory.session_state import is_session_id, split_session_id
from trading_agent.trigger import storable

_FOLD = re.compile(r'(?P<session_id>\d{4}-\d{2}-\d{2}-[1-9]\d{0,8})(?:\.(?P<number>\d+))?\.md', re.ASCII)
_NAME = re.compile(r'[a-z0-9-]+(?:\.[a-z0-9-]+)*\.md', re.ASCII)
_LONGEST_WHY = 1000


class MemoryChange(msgspec.Struct, frozen=True, tag='change', tag_field='type', omit_defaults=True):
    """What was done to Memory.md, or was about to be done when the process died.

    Attributes:
        at: When, as an ISO 8601 string in UTC.
        kind: `folded`: a session's lessons were folded in; `refused`: they were not; `restored`: a person put the
            text from before a session's fold back.
        session_id: The session.
        before: The digest of the text before.
        after: The digest of the new text.
        kept: The file in the history that holds the text before; of a `refused` one, the text that was refused.
        why: The model's reasons, or why it was refused.
        by: Who did it, where a person did.
    """

    at: str
    kind: Literal['folded', 'refused', 'restored']
    session_id: str
    before: str
    after: str
    kept: str
    why: str = ''
    by: str = ''


@dataclass(frozen=True)
class FoldedText:
    """What one fold of a session made of Memory.md.

    Attributes:
        before: The text before.
        after: The text that followed.
        edited: Whether the text that followed is known only with what a person changed in it afterwards.
        why: The model's reasons.
        at: When, as an ISO 8601 string in UTC; empty where it is not known.
    """

    before: str
    after: str
    edited: bool
    why: str
    at: str


class MemoryHistory:
    """One desk's `memory_history`. All methods block on the disk.

    Args:
        folder: The desk's folder.
        now: Returns the time.
        damage: Is told of lines of the ledger that cannot be read; None logs them.
    """

    def __init__(
        self,
        folder: Path,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        damage: DamageReport | None = None,
    ) -> None:
        self.folder = folder / 'memory_history'
        self._now = now
        self._ledger = RecordFile(self.folder / 'ledger.jsonl', MemoryChange, damage)

    def keep(self, name: str, text: bytes) -> str:
        """Keeps a text under a name, or the name with a number where another text has it; returns the file's name."""
        files.make_folder(self.folder)
        for number in itertools.count(1):
            path = self.folder / (f'{name}.md' if number == 1 else f'{name}.{number}.md')
            kept = files.read(path)
            if kept is None:
                files.replace(path, text)
            if kept is None or kept == text:
                return path.name
        raise AssertionError

    def record(
        self,
        kind: Literal['folded', 'refused', 'restored'],
        session_id: str,
        *,
        before: str,
        after: str,
        kept: str,
        why: str = '',
        by: str = '',
    ) -> None:
        """Writes down what is about to be done; what a repeat after a crash says again is written once."""
        why = ' '.join(storable(why).split())[:_LONGEST_WHY]
        change = MemoryChange(utc_text(self._now()), kind, session_id, before, after, kept, why, storable(by))

        def wanted(known: list[MemoryChange]) -> bool:
            return not known or msgspec.structs.replace(known[-1], at=change.at) != change

        self._ledger.append(change, wanted)

    def changes(self) -> list[MemoryChange]:
        """Returns what was done, oldest first; folds from before there was a ledger come first.

        Raises:
            StorageError: The history cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        known = self._ledger.read()
        told = {change.kept for change in known}
        return [*self._unrecorded(told), *known]

    def _unrecorded(self, told: set[str]) -> list[MemoryChange]:
        found = []
        for name in files.names_in(self.folder):
            fold = _FOLD.fullmatch(name)
            if fold is not None and name not in told and is_session_id(fold['session_id']):
                order = (*split_session_id(fold['session_id']), int(fold['number'] or 1))
                found.append((order, MemoryChange('', 'folded', fold['session_id'], '', '', name)))
        return [change for _, change in sorted(found, key=lambda entry: entry[0])]

    def read(self, name: str) -> bytes | None:
        """Returns a text of the history, or None where there is none."""
        return files.read(self.folder / name) if _NAME.fullmatch(name) else None

    def folds(self, session_id: str, present: bytes, digest: Callable[[bytes], str]) -> list[FoldedText]:
        """Returns what each fold of a session changed, oldest first; none where it changed nothing.

        Args:
            session_id: The session.
            present: The Memory.md of now.
            digest: Returns a text's digest.

        Raises:
            StorageError: The history cannot be read.
        """
        changes = self.changes()
        taken = [change for change in changes if change.kind != 'refused']
        texts: dict[str, bytes] | None = None
        found = []
        for at, change in enumerate(taken):
            before = self.read(change.kept) if change.session_id == session_id and change.kind == 'folded' else None
            if before is None:
                continue
            if texts is None:
                texts = {digest(text): text for text in [present, *self.texts(changes)]}
            following = next(self.texts(taken[at + 1 :]), present)
            after = texts.get(change.after)
            edited = after is None and bool(change.after)
            whole = following if after is None else after
            found.append(FoldedText(_shown(before), _shown(whole), edited, change.why, change.at))
        return found

    def texts(self, changes: Iterable[MemoryChange]) -> Iterator[bytes]:
        """Yields the texts that were kept, those that are still there."""
        return (text for change in changes if (text := self.read(change.kept)) is not None)


def _shown(data: bytes) -> str:
    return data.decode('utf-8-sig', errors='replace')
