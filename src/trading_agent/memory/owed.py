"""Summaries that were made without a model: made in full once one can be asked, and then told to the desk."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from trading_agent import files
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable, StorageError, TurnRefused
from trading_agent.events import WriteFailed
from trading_agent.memory import carry
from trading_agent.memory.review import Reviewer
from trading_agent.memory.rollover import FORMAT_VERSION, Review, SummaryPart
from trading_agent.memory.rollover_steps import RolloverSteps
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import SessionStore


class _Progress(msgspec.Struct, frozen=True):
    session_id: str = ''
    parts: tuple[SummaryPart, ...] = ()
    version: int = FORMAT_VERSION
    review: Review | None = None
    folded: bool = False


class OwedSummaries:
    """One desk's debts: a `(degraded)` heading on disk is one, `untold.json` lists those paid but not told yet.

    `backfill.json` has how far the one that is being paid has come, for whatever is due cuts it off: the parts of a
    long session's summary, the review, and whether that is folded into Memory.md, which is not done twice.

    Args:
        store: The desk's sessions folder.
        reviewer: Asks for the review.
        steps: Files what comes of it.
        disk: Where file work is done.
    """

    def __init__(self, store: SessionStore, reviewer: Reviewer, steps: RolloverSteps, disk: Disk) -> None:
        self._store = store
        self._reviewer = reviewer
        self._steps = steps
        self._disk = disk
        self.sessions: list[str] = []
        self.untold: list[str] = []
        self._refused: set[str] = set()
        self._telling: list[str] = []
        self._told_by: tuple[str | None, int] = (None, 0)

    @property
    def _untold_path(self) -> Path:
        return self._store.directory / 'untold.json'

    async def load(self) -> None:
        """Reads both lists from the files."""
        await self._disk.run(self._note_fold)
        self.sessions, self.untold = await self._disk.run(self._read)

    def _read(self) -> tuple[list[str], list[str]]:
        data = files.read(self._untold_path)
        untold: list[str] = []
        if data is not None:
            try:
                untold = msgspec.json.decode(data.decode(), type=list[str])
                for session_id in untold:
                    split_session_id(session_id)
            except (ValueError, RecursionError) as error:  # it only costs the desk a note
                untold = []
                self._store.damage.set_aside(self._untold_path, error)
        return self._store.owed_summaries(), untold

    def add(self, session_id: str) -> None:
        """Remembers a summary that was just filed without a model."""
        self.sessions = sorted({*self.sessions, session_id}, key=split_session_id)

    async def pay_one(self) -> bool:
        """Makes the oldest summary that is owed in full, and folds that day into Memory.md.

        May be cancelled: the files are whole after each step, and the next call begins anew.

        Returns:
            Whether one was made. A disk that fails is told, and the debt stays.

        Raises:
            DeskUnusable: A newer version of the program wrote the notes, or the history of Memory.md.
        """
        for session_id in [owed for owed in self.sessions if owed not in self._refused]:
            try:
                if await self._pay(session_id):
                    return True
            except TurnRefused:
                self._refused.add(session_id)  # no backend takes it: tried again by the next process
            except StorageError as error:
                self._steps.publish(WriteFailed.of(error, self._steps.desk))
                return False
            except DeskUnusable:
                raise
            except Exception:  # noqa: BLE001 - whatever it was (the router tells it), the debt stays
                return False
        return False

    async def _pay(self, session_id: str) -> bool:
        exchanges = await self._disk.run(self._store.exchanges, session_id)
        if not exchanges:
            return False  # the log was moved away by hand: the short summary is all that there will be
        progress = await self._disk.run(self._progress_of, session_id)
        parts, review = progress.parts, progress.review
        while review is None:
            made = await self._reviewer.step(session_id, exchanges, parts)
            if isinstance(made, SummaryPart):
                parts = (*parts, made)
            else:
                review = made
            await self._keep(session_id, parts, review)
        if not progress.folded:
            await self._steps.fold(session_id, review, exchanges, parts, partial(self._keep, session_id, parts))
            await self._keep(session_id, parts, review, folded=True)
        # Listed before the summary is filed, so that the desk is told also after a crash in between.
        await self._set_untold([*(other for other in self.untold if other != session_id), session_id])
        await self._steps.write_summary(session_id, review, backfilled=True)
        self.sessions = [owed for owed in self.sessions if owed != session_id]
        await self._disk.run(files.remove, self._progress_path)
        return True

    @property
    def _progress_path(self) -> Path:
        return self._store.directory / 'backfill.json'

    def _progress(self) -> _Progress:
        data = files.read(self._progress_path)
        if data is None:
            return _Progress()
        try:
            progress = msgspec.json.decode(data.decode(), type=_Progress)
        except (ValueError, RecursionError) as error:  # it only costs asking again
            self._store.damage.set_aside(self._progress_path, error)
            return _Progress()
        if progress.version > FORMAT_VERSION:
            raise DeskUnusable(
                f'{self._progress_path} has format {progress.version}, and this program knows up to {FORMAT_VERSION}',
                'install the newer version of trading-agent again; nothing was changed',
            )
        return progress

    def _progress_of(self, session_id: str) -> _Progress:
        """Returns what is there of a summary that was cut off on its way; a review only while it can be folded."""
        progress, memory = self._progress(), self._steps.memory
        if progress.session_id != session_id:
            return _Progress()
        review = progress.review
        if review is None or progress.folded or memory is None or memory.has(review.memory):
            return progress
        # Another day was folded in since: with this one the desk would do without a lesson where no model can be asked.
        stale = memory.read().digest != review.memory_digest
        return msgspec.structs.replace(progress, review=None) if stale else progress

    def _note_fold(self) -> None:
        """Notes that a fold was made where a crash came before that, and before another one hides it."""
        with suppress(StorageError):  # no reason not to start
            progress, memory = self._progress(), self._steps.memory
            if progress.review is None or progress.folded or memory is None:
                return
            if memory.has(progress.review.memory):
                self._write(msgspec.structs.replace(progress, folded=True))

    async def _keep(
        self, session_id: str, parts: tuple[SummaryPart, ...], review: Review | None, *, folded: bool = False
    ) -> None:
        await self._disk.run(self._write, _Progress(session_id, parts, review=review, folded=folded))

    def _write(self, progress: _Progress) -> None:
        files.replace(self._progress_path, msgspec.json.encode(progress) + b'\n')

    def tell(self, session_id: str | None, exchanges: int) -> list[str]:
        """Returns the sessions whose full summary was made late and that the desk is to be told of now.

        Args:
            session_id: The session of the message that tells it.
            exchanges: How many exchanges that session has before it.
        """
        self._telling = [late for late in self.untold if late not in self.sessions]
        self._told_by = (session_id, exchanges)
        return self._telling

    def noted(self, text: str, session_ids: Sequence[str]) -> str:
        """Returns a message with late summaries in front, in the order given. Blocks on the disk."""
        for session_id in reversed(session_ids):
            sections = self._store.summary_sections(split_session_id(session_id)[0])
            late = '\n\n'.join(section.text for section in sections if section.session_id == session_id)
            if late:
                text = carry.framed(carry.LATE.format(session_id=session_id), carry.harmless(late), text)
        return text

    async def answered(self, session_id: str | None, exchanges: int) -> None:
        """Forgets what `tell` returned once the message that told it was answered.

        Where that cannot be written down, which is told, the desk is told again after a restart.
        """
        told, self._telling = self._telling, []
        if told and session_id == self._told_by[0] and exchanges > self._told_by[1]:
            try:
                await self._set_untold([late for late in self.untold if late not in told])
            except StorageError as error:
                self._steps.publish(WriteFailed.of(error, self._steps.desk))

    async def _set_untold(self, session_ids: list[str]) -> None:
        self.untold = session_ids
        if session_ids:
            await self._disk.run(files.replace, self._untold_path, msgspec.json.encode(session_ids))
        else:
            await self._disk.run(files.remove, self._untold_path)
