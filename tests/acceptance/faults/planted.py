"""Faults that are planted into the program: each is one promise broken on purpose, and the suite must find it.

A fault is a set of edits to the source of single functions, made in the running process. A process that is started
gets it by the environment: its program calls `plant_from_environment()` before anything else.
"""

import importlib
import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

VARIABLE = 'PLANTED_FAULT'


class Edit(NamedTuple):
    """A change to the source of one function.

    Attributes:
        module: The module, within the package.
        function: The function, or `Class.method`.
        old: What stands in its source, once; the source begins at the left margin.
        new: What stands there instead.
    """

    module: str
    function: str
    old: str
    new: str


NO_SYNC_AT_ALL = 'no sync at all'
"""The one that is made of Python itself: `os.fsync` and `os.fdatasync` do nothing."""

_SPLIT_IN_TEXT = """for number, line in enumerate(path.read_bytes().decode('utf-8', 'replace').splitlines(), 1):
            line = line.encode()"""

FAULTS: dict[str, list[Edit]] = {
    'no fdatasync on append': [
        Edit('files', 'append', 'syncs.sync_or_rewrite(descriptor, unsynced, start, path, end - start)', 'pass')
    ],
    'no folder sync on create': [Edit('files', 'create', 'sync_folder(path.parent)', 'pass')],
    'rename before sync': [
        Edit(
            'files',
            '_put',
            '_write_new(temporary, data)',
            'with open(temporary, "xb", opener=lambda at, how: os.open(at, how, 0o600)) as new: new.write(data)',
        ),
        Edit(
            'files',
            'replace',
            'os.replace(new, path)',
            '(os.replace(new, path), seal(path))',
        ),
        Edit('files', 'create', 'os.link(new, path)', '(seal(new), os.link(new, path))'),
    ],
    'tail not sealed': [
        Edit('files', 'append', "not tail.endswith(b'\\n')", 'False'),
        Edit('files', 'seal', "(b'\\n' if torn else b'')", "b''"),
    ],
    'splitlines': [
        Edit('json_lines', 'read', 'for number, (_, line, _) in enumerate(_split(file, block), 1):', _SPLIT_IN_TEXT)
    ],
    'a read that raises on a bad byte': [
        Edit('json_lines', 'read', 'yield number, line', 'yield number, line.decode().encode()')
    ],
    'a trigger acknowledged before it is durable': [
        Edit(
            'memory.trigger_queue',
            'TriggerQueue.accept',
            'apply=partial(self._accepted, trigger, now))',
            'apply=partial(self._accepted, trigger, now), sync=False)',
        )
    ],
    'closed before the exchange is synced': [
        Edit(
            'memory.session_store',
            'SessionStore.append_exchange',
            'files.append(path, line, once',
            'files.append(path, line, sync=False, once',
        )
    ],
    'state before the exchange': [
        Edit(
            'routing.ending',
            'Ending.write',
            'store.append_exchange(self.state.session_id, self.exchange)',
            'store.save_state(self.state); store.append_exchange(self.state.session_id, self.exchange)',
        )
    ],
    'an exchange appended twice on a retry': [
        Edit('files', 'append', 'os.ftruncate(descriptor, min(end, os.fstat(descriptor).st_size))', 'pass'),
        Edit('syncs', 'write_again', '_take_back(descriptor, data[:kept], offset)', 'pass'),
        Edit('files', 'append', 'if once and', 'if False and'),
    ],
    'an exchange appended twice by a restart': [
        Edit(
            'daemon.recovery',
            'Recovery._completed',
            'if all(exchange.trigger_id != journaled.trigger_id for exchange in exchanges):',
            'if True:',
        ),
        # The store takes what its log ends with for a try of before, and would not write it again.
        Edit(
            'memory.session_store', 'SessionStore.append_exchange', 'once=exchange.trigger_id is not None', 'once=False'
        ),
    ],
    'a sync error swallowed': [
        Edit(
            'syncs',
            'sync_or_rewrite',
            'write_again(descriptor, data, offset, kept)',
            'os.fdatasync(descriptor)',
        )
    ],
    'a failed sync written again to the same pages': [
        Edit('syncs', 'write_again', 'os.ftruncate(descriptor, offset)', 'pass'),
    ],
    'lock not taken': [Edit('files', 'Lock.acquire', 'fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)', 'pass')],
    'dates compared with !=': [
        Edit('memory.rollover', 'decide', 'if trusted_date > session_date:', 'if trusted_date != session_date:')
    ],
    'rollover without its stages': [
        Edit(
            'memory.rollover_steps',
            'RolloverSteps.save',
            'await self.disk.run(files.make_folder',
            'return\n    await self.disk.run(files.make_folder',
        )
    ],
    'summary named by the current date': [
        Edit(
            'memory.session_store',
            'SessionStore.write_summary_section',
            'day, _ = split_session_id(session_id)',
            'day = self.today()',
        )
    ],
    "a second session's section overwriting the first's": [
        Edit(
            'memory.session_store',
            'SessionStore.write_summary_section',
            'kept = [section for section in sections if section.session_id != session_id]',
            'kept = []',
        )
    ],
    'id picked without O_EXCL': [Edit('files', 'create', 'os.link(new, path)', 'os.replace(new, path)')],
    'index offset committed apart from its rows': [
        Edit(
            'index.feed',
            'Feed._batch',
            """
        write(connection, rows, full_text=True)
        if source.kind == 'journal' and _came_late(connection, session.key):
            schema.purge(connection, *session.key)
            return False, Place(), 0
        place = lines.place()
        _set_place(connection, session.key, source, place)
""",
            """
        place = lines.place()
        _set_place(connection, session.key, source, place)
    with self._index.writing('write') as connection:
        write(connection, rows, full_text=True)
""",
        )
    ],
    'skipped events not told': [Edit('event_bus', 'Subscription._skip', 'tell = not self._lagging', 'tell = False')],
    'a file made 0644': [Edit('files', '_write_new', 'os.fchmod(descriptor, 0o600)', 'os.fchmod(descriptor, 0o644)')],
    'journal digest not chained': [
        Edit('conversation.journal', 'Journal.append', 'previous=digest', "previous=''"),
    ],
    'side-effect call made before its record is synced': [
        Edit('conversation.recorder', 'Recorder.write_through', '*records, sync=True', '*records, sync=False')
    ],
    NO_SYNC_AT_ALL: [],
}
"""Each fault with its edits."""


class _Planting:
    """What was put in place of what."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:  # noqa: ANN401 - a module or a class, and anything of it
        self._before.append((owner, name, inspect.getattr_static(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


def _edit(planting: _Planting, edit: Edit) -> None:
    module = importlib.import_module(f'trading_agent.{edit.module}')
    *owners, name = edit.function.split('.')
    owner = getattr(module, owners[0]) if owners else module
    # A second edit of one function finds its source in what the first one left.
    function = inspect.unwrap(getattr(owner, name))
    source = getattr(function, 'edited_source', None) or textwrap.dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise LookupError(f'{edit.old!r} stands {source.count(edit.old)} times in {edit.module}.{edit.function}')
    source = source.replace(edit.old, edit.new)
    made: dict[str, Any] = {}
    exec(compile(source, f'<planted into {edit.function}>', 'exec'), vars(module), made)  # noqa: S102 - what it is for
    made[name].edited_source = source
    before = getattr(owner, name)
    planting.set(owner, name, made[name])
    for other in [] if owners else list(sys.modules.values()):
        # Who has imported it by its name goes on with the one that he has.
        if other.__name__.startswith('trading_agent.') and vars(other).get(name) is before:
            planting.set(other, name, made[name])


def _plant(planting: _Planting, name: str) -> None:
    if name == NO_SYNC_AT_ALL:
        for call in ('fsync', 'fdatasync'):
            planting.set(os, call, lambda _: None)
    for edit in FAULTS[name]:
        _edit(planting, edit)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants a fault into this process until the block ends; an empty name plants none."""
    planting = _Planting()
    try:
        if name:
            _plant(planting, name)
        yield
    finally:
        planting.undo()


def plant_from_environment() -> None:
    """Plants the fault that the environment names, for as long as the process lives."""
    if name := os.environ.get(VARIABLE):
        _plant(_Planting(), name)


def environment(name: str) -> dict[str, str]:
    """Returns what plants a fault into a process that is started."""
    return {VARIABLE: name} if name else {}
