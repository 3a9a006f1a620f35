"""The file behind a desk's trigger queue: what was accepted, started, interrupted and closed, one line each."""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import anyio
import anyio.from_thread
import msgspec

from trading_agent import files, json_lines
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.events import Event, Outcome, StoreDamaged
from trading_agent.trigger import Trigger

FORMAT_VERSION = 1

_SYNCED, _UNSYNCED = True, False


Attempt = Annotated[int, msgspec.Meta(le=1 << 53)]
"""A count of starts that can be added to: a larger one is damage."""


class Header(msgspec.Struct, frozen=True, tag='header', tag_field='type'):
    """The first line."""

    version: int
    desk: str


class Accepted(msgspec.Struct, frozen=True, tag='accepted', tag_field='type'):
    """A trigger is the desk's to answer from now on."""

    at: str
    trigger: Trigger


class Started(msgspec.Struct, frozen=True, tag='started', tag_field='type'):
    """A trigger is being run; the attempts count from 1."""

    at: str
    id: str
    attempt: Attempt


class Interrupted(msgspec.Struct, frozen=True, tag='interrupted', tag_field='type', omit_defaults=True):
    """A run ended in order but without an answer: at a `stop`, or with `no_backend` to answer."""

    at: str
    id: str
    attempt: Attempt
    reason: str = 'stop'


class Closed(msgspec.Struct, frozen=True, tag='closed', tag_field='type'):
    """A trigger has its outcome."""

    at: str
    id: str
    outcome: Outcome
    session_id: str | None = None


Record = Header | Accepted | Started | Interrupted | Closed
_DECODER = msgspec.json.Decoder(Record)


def decode(line: bytes) -> Record:
    """Reads one line.

    Raises:
        ValueError: It is no record.
        RecursionError: It is none, and nested too deep.
    """
    record = _DECODER.decode(line)
    # Without it a trigger would get a new one, and be run again under that. Within a text the quotes are escaped.
    if isinstance(record, Accepted) and b'"id"' not in line:
        raise ValueError('the trigger has no id')
    return record


@dataclass
class _Batch:
    lines: list[bytes] = field(default_factory=list)
    applied: list[Callable[[], None]] = field(default_factory=list)
    error: StorageError | None = None
    written: bool = False


class TriggerLog:
    """One desk's `triggers.jsonl` and its archive.

    Args:
        folder: The desk's folder.
        desk: The desk's name.
        publish: Where events go.
        disk: Where file work is done.
    """

    def __init__(self, folder: Path, desk: str, publish: Callable[[Event], None], disk: Disk) -> None:
        self.path = folder / 'triggers.jsonl'
        self._archive = folder / 'triggers'
        self._desk = desk
        self._publish = publish
        self._disk = disk
        self._lock = anyio.Lock()
        self._batch: _Batch | None = None
        self._told: set[int] = set()
        self._synced: int | None = None

    async def read(self, apply: Callable[[list[Record]], None]) -> None:
        """Reads every record and closes a torn tail. A line that cannot be read is skipped and told.

        Args:
            apply: Is given the records before anything else is written.

        Raises:
            StorageError: The file cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        async with self._lock:
            apply(await self._disk.run(self._read))

    async def append(self, *records: Record, apply: Callable[[], None], sync: bool = True) -> None:
        """Appends records, all or none. Those that wait for the disk together share one sync.

        Args:
            records: The records.
            apply: Called once they are in the file and before anything else is done to the file, so that what the
                caller remembers and what the file says never differ when it is archived.
            sync: False leaves the write to the system to sync.

        Raises:
            StorageError: They are not in the file.
        """
        line = b''.join(map(_line, records))
        if not sync:
            async with self._lock:
                await self._disk.run(self._write, line, _UNSYNCED)
                apply()
            return
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch()
        batch.lines.append(line)
        batch.applied.append(apply)
        with anyio.CancelScope(shield=True):
            async with self._lock:
                if not batch.written:
                    self._batch = None
                    batch.written = True
                    await self._flush(batch)
        if batch.error is not None:
            raise batch.error

    async def _flush(self, batch: _Batch) -> None:
        # Should this be broken off in another way, nobody is told that it was written.
        batch.error = StorageError('append to', self.path, InterruptedError(errno.EINTR, os.strerror(errno.EINTR)))
        try:
            await self._disk.run(self._write, b''.join(batch.lines), _SYNCED)
        except StorageError as error:
            batch.error = error
            return
        batch.error = None
        for apply in batch.applied:
            apply()

    def _write(self, data: bytes, sync: bool) -> None:  # noqa: FBT001 - given by place, in a thread
        size = files.append(self.path, data, sync=sync, synced=self._synced)
        if sync:
            self._synced = size
        elif self._synced is None:
            self._synced = size - len(data)

    async def archive(self, session_id: str, kept: Callable[[], Iterable[Record]]) -> bool:
        """Keeps the file under a session's name and goes on with a new one that begins with `kept()`.

        Safe to repeat after a crash in its middle.

        Returns:
            Whether that was done; False when it had been done before.
        """
        async with self._lock:
            data = b''.join(map(_line, [Header(FORMAT_VERSION, self._desk), *kept()]))
            done = await self._disk.run(self._archive_now, self._archive / f'{session_id}.jsonl', data)
            if done:
                self._told.clear()
            return done

    def _archive_now(self, target: Path, data: bytes) -> bool:
        files.make_folder(target.parent)
        if not files.link(self.path, target):
            files.sync_folder(self.path.parent)  # the last step of the earlier call may have failed
            return False
        files.replace(self.path, data)
        self._synced = None
        return True

    def _read(self) -> list[Record]:
        files.make_folder(self.path.parent)
        records: list[Record] = []
        for number, line in json_lines.read(self.path):
            try:
                record = decode(line)
            except (ValueError, RecursionError) as error:
                self._damaged(number, error)
                continue
            if isinstance(record, Header) and record.version > FORMAT_VERSION:
                raise DeskUnusable(
                    f'{self.path} has format {record.version}, and this program knows up to {FORMAT_VERSION}',
                    'install the newer version of trading-agent again; nothing was changed',
                )
            records.append(record)
        files.seal(self.path)
        self._synced = None
        if not records:
            files.append(self.path, _line(Header(FORMAT_VERSION, self._desk)))
        return records

    def _damaged(self, number: int, error: Exception) -> None:
        if number in self._told:
            return
        self._told.add(number)
        event = StoreDamaged(
            desk=self._desk,
            path=str(self.path),
            line=number,
            error=f'{type(error).__name__}: {error}'[:500],
            hint='the line is skipped and stays in the file; if it was a trigger, send that one again',
        )
        anyio.from_thread.run_sync(self._publish, event)


def open_triggers(path: Path) -> dict[str, Trigger]:
    """Returns the triggers of a file that are not closed, by id, in the order in which they came. Changes nothing.

    Raises:
        StorageError: The file cannot be read.
    """
    found: dict[str, Trigger] = {}
    for _, line in json_lines.read(path):
        try:
            record = decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, Accepted):
            found[record.trigger.id] = record.trigger
        elif isinstance(record, Closed):
            found.pop(record.id, None)
    return found


def _line(record: Record) -> bytes:
    return msgspec.json.encode(record) + b'\n'
