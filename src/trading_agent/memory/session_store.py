"""Keeps a desk's sessions on disk, so that a restart does not make the desk forget the day.

A session is one stretch of conversation, normally one India trading day. The folder holds:

    sessions/state.json                which session is current, and what each backend needs to resume it
    sessions/2026-10-19-1.jsonl        the finished exchanges of that session, one JSON line each
    sessions/summaries/2026-10-19.md   what was written when that day's sessions ended
    sessions/.session-ids              every id ever given out, so that an archived log's id is not used again

Example:
    store = SessionStore(Path('workspace/desks/main/sessions'))
    state = store.load_state()
    store.append_exchange(state.session_id, exchange)
"""

import json
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from trading_agent import files, json_lines
from trading_agent.clock import trading_date as trading_date_of
from trading_agent.errors import StorageError
from trading_agent.memory.daily_summary import DailySummary, SummarySection, quoted_headings, split_sections
from trading_agent.memory.damage import Damage, DamageReport, keep_aside, set_aside
from trading_agent.memory.exchange import NO_EXCHANGE, Exchange, decode_line, encode_line, last_exchanges
from trading_agent.memory.session_ids import SessionIds
from trading_agent.memory.session_state import (
    RouteState,
    SessionState,
    decode_state,
    is_session_id,
    parse_date,
    split_session_id,
)
from trading_agent.trigger import storable

__all__ = ['DailySummary', 'Damage', 'Exchange', 'RouteState', 'SessionState', 'SessionStore']

_STATE = 'state.json'
_SUMMARIES = 'summaries'


class SessionStore:
    """One desk's sessions folder.

    All methods block on the disk. They may be called from several threads; writing is for one process at a time,
    but that two processes are never given the same new id.

    Args:
        directory: The desk's sessions folder. Nothing on the disk is touched yet.
        date_source: Returns today's India date; None uses the clock. Tests replace it.
        on_damage: Is told of each damaged part once, from the thread that read it; None logs it.

    Attributes:
        directory: The sessions folder.
        damage: Is told of each damaged part.
    """

    def __init__(
        self,
        directory: Path,
        date_source: Callable[[], date] | None = None,
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self.directory = directory
        self._date_source = date_source
        self.damage = DamageReport(on_damage)
        self.ids_given_out = SessionIds(directory, self.damage)
        self._writing = threading.Lock()
        self._choosing = threading.Lock()
        self._named_session: str | None = None
        self._planned: str | None = None

    def today(self) -> date:
        """Returns today's date in India, which decides when a new session starts."""
        return trading_date_of(datetime.now(UTC)) if self._date_source is None else self._date_source()

    # -- state -------------------------------------------------------------------------------------------------

    def load_state(self) -> SessionState | None:
        """Reads which session is current.

        Returns:
            The state, or None when there is none yet or it is damaged, which is told.

        Raises:
            StorageError: It is there and cannot be read: that is not "none yet".
        """
        path = self.directory / _STATE
        data = files.read(path)
        state, problem = (None, '') if data is None else decode_state(data)
        if problem:
            self.damage.tell(path, None, problem)
        return state

    def save_state(self, state: SessionState) -> None:
        """Writes which session is current: whole or not at all.

        An older state of the same session only means that a backend is told more than it needs, so the folder is
        synced only when the state names another session than this store's last one, and the first time.

        Raises:
            StorageError: It could not be written; the old state stays.
        """
        text = json.dumps(state.to_json_dictionary(), indent=2)
        with self._writing:
            files.make_folder(self.directory)
            new_session = state.session_id != self._named_session
            files.replace(self.directory / _STATE, text.encode(), sync_name=new_session)
            self._named_session = state.session_id

    def set_state_aside(self, now: datetime) -> Path | None:
        """Moves a damaged state file out of the way, under a name with the time.

        Returns:
            Where it is now, or None when there was none.
        """
        path = self.directory / _STATE
        return None if files.read(path) is None else set_aside(path, now)

    # -- ids ---------------------------------------------------------------------------------------------------

    def next_session_id(self, trading_date: date) -> str:
        """Returns the id that a new session of a day would get, without creating it.

        Its number is one more than the highest that any log, summary or state of that day has ever had.
        """
        numbers = [number for day, number in self._known_ids(trading_date) if day == trading_date]
        return f'{trading_date.isoformat()}-{max(numbers, default=0) + 1}'

    def create_session(self, session_id: str) -> None:
        """Records a session's id and creates its empty log.

        Raises:
            FileExistsError: There is one already.
            InvalidSessionId: The id is none.
            StorageError: It could not be created.
        """
        path = self.log_path(session_id)
        files.make_folder(self.directory)
        self.ids_given_out.record(session_id)
        files.create(path)

    def plan_session(self, session_id: str) -> None:
        """Makes `session_id` the one that the next `new_session_id` returns, whether its log is there or not.

        A rollover writes down the new id before it creates the session, so that a crash in between does not make
        another one.
        """
        split_session_id(session_id)
        self._planned = session_id

    def new_session_id(self, trading_date: date) -> str:
        """Picks the next free session identifier for a day, or the planned one, and creates its empty log.

        Returns:
            An identifier such as "2026-10-19-2", never given to anyone else, in this process or another.

        Raises:
            StorageError: It could not be created; a planned one stays planned.
        """
        with self._choosing:
            while True:
                session_id = self._planned or self.next_session_id(trading_date)
                try:
                    self.create_session(session_id)
                except FileExistsError:
                    if session_id != self._planned:
                        continue
                self._planned = None
                return session_id

    def _known_ids(self, trading_date: date) -> Iterator[tuple[date, int]]:
        # An operator may have moved logs away or compressed them; whatever else carries the id keeps it taken.
        names = [name.split('.')[0] for name in files.names_in(self.directory)]
        names += self.ids_given_out.read()
        names += [section.session_id for section in self.summary_sections(trading_date)]
        state = self.load_state()
        names += [state.session_id] if state else []
        return map(split_session_id, filter(is_session_id, names))

    def has_had(self, session_id: str) -> bool:
        """Returns whether there is a session, or was one, as its id was given out: that its log is missing is told."""
        has_log, had_one = session_id in self.session_ids(), session_id in self.ids_given_out.read()
        if had_one and not has_log:
            self.damage.tell(self.log_path(session_id), None, 'the log of the session is missing')
        return has_log or had_one

    # -- exchanges ---------------------------------------------------------------------------------------------

    def log_path(self, session_id: str) -> Path:
        """Returns the file of a session's exchanges.

        Raises:
            InvalidSessionId: The id is none.
        """
        split_session_id(session_id)
        return self.directory / f'{session_id}.jsonl'

    def append_exchange(self, session_id: str, exchange: Exchange) -> None:
        """Adds one finished exchange to the end of a session's log, durably.

        Raises:
            InvalidSessionId: The id is none.
            StorageError: It is not in the log.
        """
        path = self.log_path(session_id)
        line = encode_line(exchange)
        with self._writing:
            files.make_folder(self.directory)
            files.append(path, line, once=exchange.trigger_id is not None)

    def exchanges(self, session_id: str, *, last: int | None = None) -> list[Exchange]:
        """Reads a session's exchanges, oldest first. A damaged line is skipped and told.

        Args:
            session_id: The session.
            last: Only so many from the end, where a damaged line is left out untold; None for all.

        Returns:
            The exchanges, or an empty list for an unknown session.

        Raises:
            StorageError: The log is there and cannot be read.
        """
        if not is_session_id(session_id):
            return []
        path = self.log_path(session_id)
        if last is not None:
            return last_exchanges(path, last)
        found = []
        for number, line in json_lines.read(path):
            try:
                found.append(decode_line(line))
            except NO_EXCHANGE as error:
                self.damage.tell(path, number, error)
        return found

    def session_ids(self) -> list[str]:
        """Returns the id of every session that has a log, newest first."""
        logs = (name for name in files.names_in(self.directory) if name.endswith('.jsonl'))
        ids = filter(is_session_id, (name.removesuffix('.jsonl') for name in logs))
        return sorted(ids, key=split_session_id, reverse=True)

    def seal(self, session_id: str) -> bool:
        """Closes a torn last line of a session's log; returns whether it was torn."""
        path = self.log_path(session_id)
        with self._writing:
            return files.seal(path)

    # -- summaries ---------------------------------------------------------------------------------------------

    def summary_path(self, trading_date: date) -> Path:
        """Returns the file of a day's summary."""
        return self.directory / _SUMMARIES / f'{trading_date.isoformat()}.md'

    def summaries(self) -> list[DailySummary]:
        """Returns every daily summary, newest first. One that cannot be read is left out and told."""
        dates = []
        for name in files.names_in(self.directory / _SUMMARIES):
            try:
                dates.append(parse_date(name.removesuffix('.md')) if name.endswith('.md') else None)
            except ValueError:
                continue
        texts = ((day, self._summary_text(day)) for day in sorted((day for day in dates if day), reverse=True))
        return [DailySummary(day, text.strip()) for day, text in texts if text is not None]

    def latest_summary(self) -> DailySummary | None:
        """Returns the newest summary, or None when no day has been summarised yet."""
        return next(iter(self.summaries()), None)

    def write_summary(self, trading_date: date, text: str) -> Path:
        """Saves the summary of a day in place of any earlier one, whole or not at all.

        Returns:
            The summary's file.

        Raises:
            StorageError: It could not be written; the old one stays.
        """
        with self._writing:
            return self._replace_summary(trading_date, text)

    def _replace_summary(self, trading_date: date, text: str) -> Path:
        path = self.summary_path(trading_date)
        files.make_folder(path.parent)
        files.replace(path, (storable(text).strip() + '\n').encode())
        return path

    def write_summary_section(self, session_id: str, text: str, *, degraded: bool = False) -> Path:
        """Puts one session's summary into its day's file, in place of that session's earlier one.

        Args:
            session_id: The session, whose date names the file.
            text: The summary. It cannot forge another section's heading.
            degraded: Whether a full one is still owed.

        Returns:
            The summary's file.

        Raises:
            ValueError: The text is blank.
            StorageError: The day's file could not be read or written; it stays as it was.
        """
        if not text.strip():
            raise ValueError(f'an empty summary of {session_id} is not filed')
        day, _ = split_session_id(session_id)
        new = SummarySection(session_id, quoted_headings(text.strip()), degraded)
        with self._writing:
            preface, sections = split_sections(self._text_to_replace(self.summary_path(day)))
            kept = [section for section in sections if section.session_id != session_id]
            ordered = sorted([*kept, new], key=lambda section: split_session_id(section.session_id))
            parts = ([preface] if preface else []) + [section.to_markdown() for section in ordered]
            return self._replace_summary(day, '\n\n'.join(parts))

    def summary_sections(self, trading_date: date) -> list[SummarySection]:
        """Returns the sections of a day's summary, in the order of the sessions."""
        return split_sections(self._summary_text(trading_date) or '')[1]

    def owed_summaries(self) -> list[str]:
        """Returns the sessions whose summary was made without a model, oldest first."""
        return [
            section.session_id
            for summary in reversed(self.summaries())
            for section in split_sections(summary.text)[1]
            if section.degraded and split_session_id(section.session_id)[0] == summary.trading_date
        ]

    def _summary_text(self, trading_date: date) -> str | None:
        path = self.summary_path(trading_date)
        try:
            data = files.read(path)
        except StorageError as error:
            self.damage.tell(path, None, str(error))
            return None
        return None if data is None else self.damage.text_of(path, data)

    def _text_to_replace(self, path: Path) -> str:
        """Returns the text of a file that is to be replaced. Where it is not all of it, the file is kept aside."""
        data = files.read(path) or b''
        text = self.damage.text_of(path, data)
        if text.encode() not in (data, data.removeprefix(BOM_UTF8)):
            keep_aside(path)
        return text
