"""Files in a desk's inbox become triggers.

A producer writes a `.txt`, `.md` or `.json` file into `desks/<desk>/inbox/`, best under a name that ends in `.tmp`
and is then renamed. Once it has come to rest it is sent, and moved to `done/<date>/` when the desk has it, or to
`rejected/` with the reason beside it. A crash between the two does no harm: the file is sent again under the same id.

One watcher serves all inboxes, for each one costs a thread and an inotify instance. It only wakes those who look for
themselves, so that what it misses is found at the next look.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus
from watchfiles import Change, awatch
from watchfiles._rust_notify import WatchfilesRustInternalError

from trading_agent.clock import Clock
from trading_agent.daemon.sources.inbox_desk import DeskInbox, Identity
from trading_agent.daemon.sources.inbox_file import SOURCE
from trading_agent.daemon.sources.inbox_folder import InboxFolder
from trading_agent.disk import Disk
from trading_agent.event_bus import EventBus
from trading_agent.events import ComponentFailed
from trading_agent.trigger import storable

LAST_FILE_SECONDS = 1.0
"""How long the file at hand gets at a stop. One that was cut off is sent again later, under the same id."""

POLL_SECONDS = 1.0
"""How often every inbox is looked at while the watcher does not work."""


class InboxSource:
    """Watches the inboxes of all desks and sends what is put there.

    Args:
        bus: Takes the triggers and is told what went wrong.
        inboxes: The inbox of each desk, or what returns them: it is asked again at each look at everything.
        clock: Dates what is received and filed.
        disk: Runs what blocks.
        max_size: The longest text, in bytes as UTF-8.
        rescan_every: How often every folder is looked at unasked, in seconds: a renamed one goes silent.
        settle_seconds: How long a file's size and time of writing must rest before it counts.
    """

    def __init__(
        self,
        bus: EventBus,
        inboxes: Mapping[str, Path] | Callable[[], Mapping[str, Path]],
        clock: Clock,
        disk: Disk,
        *,
        max_size: int,
        rescan_every: float = 30.0,
        settle_seconds: float = 0.5,
    ) -> None:
        self._bus = bus
        self._inboxes = inboxes if callable(inboxes) else lambda: inboxes
        self._disk = disk
        self._rescan_every = rescan_every
        self._new_desk = partial(DeskInbox, bus=bus, clock=clock, max_size=max_size, settle_seconds=settle_seconds)
        self._desks: dict[str, tuple[Path, DeskInbox, anyio.CancelScope]] = {}
        self._seen: dict[str, Identity] = {}
        self._stopped = False
        self._ending = False
        self._rescan = anyio.Event()
        self._folders_changed = anyio.Event()
        self._end_of_watch = threading.Event()
        self._watch_failure_told = False

    def stop(self) -> None:
        """Lets `run` return: the file at hand of each desk is finished, or given up after a second."""
        self._stopped = True
        self._rescan.set()

    def rescan(self) -> None:
        """Asks for a look at everything now, as after desks were added or removed."""
        self._rescan.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs until `stop()` or cancelled. No desk's trouble ends it, nor holds up another desk."""
        self._ending = False
        async with anyio.create_task_group() as group:
            try:
                group.start_soon(self._watch)
                task_status.started()
                await self._tend_desks()
            finally:
                # The watcher's thread ends by its event within a step; it cannot be cancelled.
                self._ending = True
                self._restart_watch()

    # -- the desks ---------------------------------------------------------------------------------------------

    async def _tend_desks(self) -> None:
        async with anyio.create_task_group() as group:
            while not self._stopped:
                self._rescan = anyio.Event()
                self._match_desks(group, self._inboxes())
                self._wake(self._desks)
                with anyio.move_on_after(self._rescan_every):
                    await self._rescan.wait()
            for _, inbox, _ in self._desks.values():
                inbox.stop()
            group.cancel_scope.deadline = anyio.current_time() + LAST_FILE_SECONDS

    def _match_desks(self, group: TaskGroup, wanted: Mapping[str, Path]) -> None:
        for desk, (path, _, scope) in list(self._desks.items()):
            if wanted.get(desk) != path:
                scope.cancel()
                del self._desks[desk]
                self._looked(desk, None)
        for desk, path in wanted.items():
            if desk not in self._desks:
                self._seen.pop(desk, None)
                disk = self._disk.share()  # each inbox may be on another one
                inbox = self._new_desk(desk, InboxFolder(path), disk=disk, on_look=partial(self._looked, desk))
                scope = anyio.CancelScope()
                self._desks[desk] = (path, inbox, scope)
                group.start_soon(self._run_desk, inbox, scope)

    async def _run_desk(self, inbox: DeskInbox, scope: anyio.CancelScope) -> None:
        with scope:
            await inbox.run()

    def _wake(self, desks: Iterable[str]) -> None:
        for desk in desks:
            if desk in self._desks:
                self._desks[desk][1].wake()

    # -- the watcher -------------------------------------------------------------------------------------------

    def _looked(self, desk: str, identity: Identity | None) -> None:
        """Takes note of which folder a desk has seen, and watches another one where it has changed."""
        if self._seen.get(desk) == identity:
            return
        if identity is None:
            del self._seen[desk]
        else:
            self._seen[desk] = identity
        self._restart_watch()

    def _restart_watch(self) -> None:
        self._end_of_watch.set()
        self._folders_changed.set()

    async def _watch(self) -> None:
        here = await self._disk.run(_working_folder)
        while not self._ending:
            self._end_of_watch = threading.Event()
            self._folders_changed = anyio.Event()
            folders = {str(here / self._desks[desk][0]): desk for desk in self._seen if desk in self._desks}
            if not folders:
                await self._folders_changed.wait()
                continue
            try:
                await self._watch_folders(folders)
            except FileNotFoundError:
                # Removed since it was seen: its desk makes it again.
                await self._poll(POLL_SECONDS)
            except Exception as group:  # noqa: BLE001 - whatever it is, looking without it still works
                error = _first_in(group)
                if isinstance(error, WatchfilesRustInternalError) and 'decode path' in str(error):
                    await self._poll(POLL_SECONDS)  # a name that is no text: those who look can read it
                    continue
                self._tell_watch_failure(error)
                await self._poll(self._rescan_every)

    async def _watch_folders(self, folders: Mapping[str, str]) -> None:
        # Those who are woken here look once the watch is in place: it is set up before the loop's next turn.
        self._wake(folders.values())
        changes = awatch(
            *folders, watch_filter=None, debounce=200, step=50, stop_event=self._end_of_watch, recursive=False
        )
        async for changed in changes:
            self._watch_failure_told = False
            for change, path in changed:
                parent = str(Path(path).parent)
                if path in folders:
                    if change == Change.deleted:
                        # One that is made in its place may have the same inode, and would go unwatched.
                        self._looked(folders[path], None)
                    self._wake([folders[path]])
                elif parent not in folders:
                    self._wake(self._desks)
                elif change != Change.deleted:
                    self._wake([folders[parent]])

    async def _poll(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while not self._folders_changed.is_set():
                self._wake(self._desks)
                with anyio.move_on_after(POLL_SECONDS):
                    await self._folders_changed.wait()

    def _tell_watch_failure(self, error: BaseException) -> None:
        if self._watch_failure_told:
            return
        self._watch_failure_told = True
        self._bus.publish(
            ComponentFailed(
                component=SOURCE,
                error_type=type(error).__name__,
                error=storable(f'the inboxes cannot be watched and are looked at every second instead: {error}'),
                hint='raise fs.inotify.max_user_instances and fs.inotify.max_user_watches (sysctl)',
            )
        )


def _first_in(error: BaseException) -> BaseException:
    """Returns what was raised, where it comes in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _working_folder() -> Path:
    """Returns what relative inboxes are relative to: the watcher tells absolute paths."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()
