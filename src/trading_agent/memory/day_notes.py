"""What a desk notes down in the course of a session, to be folded in when the session is summed up."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from trading_agent.clock import utc_text
from trading_agent.errors import TradingAgentError
from trading_agent.memory.damage import Damage, DamageReport
from trading_agent.memory.record_file import RecordFile
from trading_agent.memory.session_state import split_session_id
from trading_agent.trigger import storable

LONGEST_NOTE = 4000
"""The longest note, in characters."""

MOST_NOTES = 200
"""Most notes of one session."""


class NoteRefused(TradingAgentError, ValueError):
    """Raised when a note is blank, too long, or one too many. Nothing was written."""


class Note(msgspec.Struct, frozen=True, tag='note', tag_field='type'):
    """One note.

    Attributes:
        at: When, as an ISO 8601 string in UTC.
        text: What.
    """

    at: str
    text: str


class DayNotes:
    """One desk's notes, in `notes/<session_id>.jsonl`. All methods block on the disk.

    Args:
        folder: The desk's folder.
        on_damage: Is told of each line that cannot be read, once; None logs it.
    """

    def __init__(self, folder: Path, *, on_damage: Callable[[Damage], None] | None = None) -> None:
        self._folder = folder / 'notes'
        self._damage = DamageReport(on_damage)

    def add(self, session_id: str, text: str, at: datetime) -> None:
        """Adds a note, durably.

        Args:
            session_id: The session.
            text: What to note: not blank, and at most 4,000 characters.
            at: When, with a zone.

        Raises:
            NoteRefused: The text is blank or too long, or the session has 200 notes.
            InvalidSessionId: The id is none.
            StorageError: It could not be written.
            DeskUnusable: A newer version of the program wrote the session's notes.
        """
        text = storable(text.strip())
        if not text:
            raise NoteRefused('a note is blank', 'say what is to be remembered')
        if len(text) > LONGEST_NOTE:
            what = f'a note has {len(text):,} characters, and at most {LONGEST_NOTE:,} are taken'
            raise NoteRefused(what, 'say it shorter, or in several notes')

        def wanted(known: list[Note]) -> bool:
            if len(known) >= MOST_NOTES:
                raise NoteRefused(
                    f'the session {session_id} has {MOST_NOTES} notes, and no more are taken',
                    'the next session begins with none',
                )
            return True

        self._file(session_id).append(Note(utc_text(at), text), wanted)

    def read(self, session_id: str) -> list[str]:
        """Returns the notes of a session, oldest first. A damaged line is skipped and told.

        Raises:
            InvalidSessionId: The id is none.
            StorageError: They are there and cannot be read.
            DeskUnusable: A newer version of the program wrote them.
        """
        return [note.text for note in self._file(session_id).read()]

    def _file(self, session_id: str) -> RecordFile[Note]:
        split_session_id(session_id)
        return RecordFile(self._folder / f'{session_id}.jsonl', Note, self._damage)
