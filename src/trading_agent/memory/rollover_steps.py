"""The rollover as a transaction that goes on where it was cut off.

`rollover.json` is written before each stage that could be seen from outside, so that no stage is done twice:
answers, summary, memory, skills, session, announced.
"""

import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from trading_agent import files
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.events import (
    Event,
    RolloverFinished,
    RolloverStarted,
    SessionEnded,
    SessionStarted,
    SkillsReviewed,
    StoreDamaged,
    SummaryWritten,
    WriteFailed,
)
from trading_agent.memory.curated import Curated, Curator
from trading_agent.memory.damage import set_aside
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.memory_fold import MemoryFold, keep_nothing
from trading_agent.memory.review import Limits, Reviewer
from trading_agent.memory.rollover import FORMAT_VERSION, Review, RolloverRecord, SummaryPart
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore


class Sessions(Protocol):
    """The part of the router that begins sessions."""

    @property
    def session_id(self) -> str | None:
        """The current session."""
        ...

    async def reset(self) -> None:
        """Starts a fresh session with the id that the store gives."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloverSteps:
    """Does the stages of one desk's rollovers.

    Attributes:
        desk: The desk's name.
        router: Begins the new session.
        store: The desk's sessions folder.
        publish: Where events go.
        reviewer: Asks for the review.
        memory: The desk's Memory.md, or None.
        curator: The skill curator, or None.
        archive: Archives the desk's triggers under the ended session's id.
        ended_digest: Returns the digest of the last line of the journal of the session before the current one.
        limits: Bounds.
        disk: Where file work is done.
        told: Returns once what was published is written down.
    """

    desk: str
    router: Sessions
    store: SessionStore
    publish: Callable[[Event], None]
    reviewer: Reviewer
    memory: MemoryFile | None
    curator: Curator | None
    archive: Callable[[str], Awaitable[None]]
    ended_digest: Callable[[], str]
    limits: Limits
    disk: Disk
    told: Callable[[], Awaitable[None]]

    @property
    def path(self) -> Path:
        """The record of a rollover that is under way."""
        return self.store.directory / 'rollover.json'

    async def load(self) -> RolloverRecord | None:
        """Returns the rollover that a restart cut off, or None.

        Raises:
            StorageError: The record is there and cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        data = await self.disk.run(files.read, self.path)
        if data is None:
            return None
        try:
            version = msgspec.convert(json.loads(data.decode('utf-8-sig')), dict[str, object]).get('version')
            if isinstance(version, int) and version > FORMAT_VERSION:
                raise DeskUnusable(
                    f'{self.path} has format {version}, and this program knows up to {FORMAT_VERSION}',
                    'install the newer version of trading-agent again; nothing was changed',
                )
            record = msgspec.json.decode(data, type=RolloverRecord)
            split_session_id(record.ended_session_id)
            split_session_id(record.ended_session_id if record.new_session_id is None else record.new_session_id)
        except (ValueError, RecursionError) as error:
            aside = await self.disk.run(set_aside, self.path)
            self.publish(
                StoreDamaged(
                    desk=self.desk,
                    path=str(aside),
                    error=f'{type(error).__name__}: {error}'[:500],
                    hint='it was moved aside; the rollover is begun again from the session log',
                )
            )
            return None
        return record

    async def run(
        self, record: RolloverRecord, exchanges: list[Exchange], on_stage: Callable[[str], None]
    ) -> RolloverRecord:
        """Does what is left of a rollover.

        Args:
            record: How far it has come.
            exchanges: The ended session's exchanges.
            on_stage: Is told each stage as it begins.

        Returns:
            The record as it was last.

        Raises:
            StorageError: A stage could not be written. Nothing is lost: call again with what `load` returns.
        """
        began = anyio.current_time()
        date_of_session, _ = split_session_id(record.ended_session_id)
        self.publish(
            RolloverStarted(
                desk=self.desk,
                session_id=record.ended_session_id,
                trading_date=date_of_session,
                reason=record.reason,
                stage=record.stage,
                exchanges=len(exchanges),
            )
        )
        while record.stage != 'announced':
            on_stage(record.stage)
            match record.stage:
                case 'answers' if not exchanges:
                    # The log was lost or damaged since: there is nothing to ask about.
                    record = msgspec.structs.replace(record, stage='session')
                case 'answers':
                    record = await self._answers(record, exchanges)
                case 'summary':
                    path = await self._write_summary(record)
                    record = msgspec.structs.replace(record, summary_path=path, stage='memory')
                case 'memory':
                    if record.review is not None and not record.review.degraded:
                        keep = partial(self._save_review, record)
                        await self.fold(record.ended_session_id, record.review, exchanges, record.parts, keep)
                    record = msgspec.structs.replace(record, stage='skills')
                case 'skills':
                    if record.review is not None and not record.review.degraded:
                        await self._review_skills(record.ended_session_id)
                    record = msgspec.structs.replace(record, stage='session')
                case _:
                    record = await self._begin_session(record)
            await self.save(record)
        on_stage(record.stage)
        await self.announce(record, anyio.current_time() - began)
        return record

    async def _answers(self, record: RolloverRecord, exchanges: list[Exchange]) -> RolloverRecord:
        """Has the session reviewed; each part of a long one is written down as it is there."""
        session_id = record.ended_session_id
        while record.review is None:
            made: SummaryPart | Review
            try:
                made = await self.reviewer.step(session_id, exchanges, record.parts)
            except DeskUnusable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, the session is rolled over now
                if isinstance(error, StorageError):  # all others the router has told
                    self.publish(WriteFailed.of(error, self.desk))
                made = await self.reviewer.without_model(session_id, exchanges)
            if isinstance(made, Review):
                return msgspec.structs.replace(record, review=made, stage='summary')
            record = msgspec.structs.replace(record, parts=(*record.parts, made))
            await self.save(record)
        return msgspec.structs.replace(record, stage='summary')

    async def save(self, record: RolloverRecord) -> None:
        """Writes how far the rollover has come, durably."""
        await self.disk.run(files.make_folder, self.path.parent)
        await self.disk.run(files.replace, self.path, msgspec.json.format(msgspec.json.encode(record)) + b'\n')

    async def _save_review(self, record: RolloverRecord, review: Review) -> None:
        await self.save(msgspec.structs.replace(record, review=review))

    async def announce(self, record: RolloverRecord, seconds: float = 0.0) -> None:
        """Tells of the old session's end and of the new one, and forgets the rollover."""
        session_id = self.router.session_id or ''
        new_date = split_session_id(session_id)[0] if session_id else None
        ended_date, _ = split_session_id(record.ended_session_id)
        self.publish(
            SessionEnded(
                desk=self.desk,
                session_id=record.ended_session_id,
                trading_date=ended_date,
                exchanges=record.exchanges,
                next_session_id=session_id,
                journal_digest=self.ended_digest(),
            )
        )
        self.publish(
            SessionStarted(
                desk=self.desk,
                session_id=session_id,
                trading_date=new_date,
                reason=record.reason,
                previous_session_id=record.ended_session_id,
                summary_path=record.summary_path,
            )
        )
        self.publish(
            RolloverFinished(
                desk=self.desk,
                session_id=record.ended_session_id,
                trading_date=ended_date,
                reason=record.reason,
                next_session_id=session_id,
                duration_ms=round(seconds * 1000),
            )
        )
        await self.told()
        await self.disk.run(files.remove, self.path)

    async def _write_summary(self, record: RolloverRecord) -> str | None:
        if record.review is None:
            return None
        return await self.write_summary(record.ended_session_id, record.review)

    async def write_summary(self, session_id: str, review: Review, *, backfilled: bool = False) -> str:
        """Files a session's summary under its date and returns the file's path."""

        def write() -> Path:
            return self.store.write_summary_section(session_id, review.summary, degraded=review.degraded)

        path = str(await self.disk.run(write))
        self.publish(
            SummaryWritten(
                desk=self.desk,
                session_id=session_id,
                trading_date=split_session_id(session_id)[0],
                quality='degraded' if review.degraded else 'backfilled' if backfilled else 'full',
                summary_path=path,
                length=len(review.summary),
                backend=review.backend,
                unproved=review.unproved,
            )
        )
        return path

    async def fold(
        self,
        session_id: str,
        review: Review,
        exchanges: Sequence[Exchange],
        parts: Sequence[SummaryPart] = (),
        keep: Callable[[Review], Awaitable[None]] = keep_nothing,
    ) -> None:
        """Replaces Memory.md by what the review made of it; see `MemoryFold.fold`."""
        fold = MemoryFold(
            desk=self.desk,
            publish=self.publish,
            reviewer=self.reviewer,
            memory=self.memory,
            limits=self.limits,
            disk=self.disk,
        )
        await fold.fold(session_id, review, exchanges, parts, keep)

    async def _review_skills(self, session_id: str) -> None:
        if self.curator is None:
            return
        trading_date, _ = split_session_id(session_id)
        failure: Exception | None = None
        curated: Curated | None = None
        try:
            with anyio.fail_after(self.limits.curator_seconds):
                curated = await self.curator.review(trading_date)
        except Exception as error:  # noqa: BLE001 - it holds up nothing, and is told
            failure = error
        curated = curated or Curated()
        self.publish(
            SkillsReviewed(
                desk=self.desk,
                session_id=session_id,
                trading_date=trading_date,
                outcome='failed' if failure else 'done',
                proposed=curated.proposed,
                applied=curated.applied,
                refused=curated.refused,
                error_type=type(failure).__name__ if failure else None,
                error=(str(failure) or type(failure).__name__) if failure else None,
            )
        )

    async def _begin_session(self, record: RolloverRecord) -> RolloverRecord:
        await self.archive(record.ended_session_id)
        if self.router.session_id == record.ended_session_id:
            if record.new_session_id is None:
                session_id = await self.disk.run(self.store.next_session_id, self._date_after(record))
                record = msgspec.structs.replace(record, new_session_id=session_id)
                await self.save(record)
            assert record.new_session_id is not None  # noqa: S101 - chosen just above
            self.store.plan_session(record.new_session_id)
            await self.router.reset()
        return msgspec.structs.replace(record, stage='announced')

    def _date_after(self, record: RolloverRecord) -> date:
        """Returns the new session's date: today, but only a corrected clock takes a desk back to an earlier one."""
        today, ended = self.store.today(), split_session_id(record.ended_session_id)[0]
        return today if record.reason == 'clock_corrected' else max(today, ended)
