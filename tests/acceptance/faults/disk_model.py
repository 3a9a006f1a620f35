"""A file system as it may be found after a power cut, by what was asked of it and what was synced.

What is modelled is what POSIX promises, and no more:

* fsync(2) and fdatasync(2) of a file make durable what was written to it before they began: its bytes and its size,
  and with fsync its mode. They do nothing for its name: that is the folder's.
* fsync(2) of a folder makes durable which names it has: files made, linked, renamed and removed in it. It does nothing
  for the bytes of these files.
* A rename is atomic: after it either both of its names are as before, or both as after; also where the folders differ.
  So is an exchange of two names.
* Everything else may be there after the power cut or not, in any combination: a later write without an earlier one, a
  rename without the bytes of the file that it put there, a folder's newest name without an older one.
* Of a write that is not durable any pages may have come to the disk, and of a page as much as any of its bytes. What is
  behind is as it was before; or zeros where there was nothing, for the file's size may have been put down first.
* After a sync that failed nothing of what it was to make durable is ever durable: Linux marks these pages as written,
  so that the next sync, which says that all is well, does not write them. Only the same bytes written once more are
  synced by it. Names are not lost in this way: a file system whose journal cannot be written stops.

Real file systems promise more, each something else. `power_cuts` chooses among what is possible here.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from disk_nodes import (
    Change,
    Fates,
    File,
    Folder,
    Leaf,
    ModeSet,
    Named,
    Node,
    Resized,
    State,
    Tear,
    Written,
    pages,
)
from file_operations import (
    ChangeMode,
    Close,
    Duplicate,
    Link,
    MakeFolder,
    Moment,
    Open,
    Operation,
    Remove,
    Rename,
    Resize,
    Seek,
    Swap,
    Sync,
    Write,
)
from system_calls import NotUnderstood

UMASK = 0o022
"""The umask under which programs are recorded."""


class _Descriptor:
    def __init__(self, node: Node, *, appends: bool) -> None:
        self.node = node
        self.appends = appends
        self.offset = 0


class Disk:
    """A folder and all that is in it, as a program's calls make it.

    Args:
        root: The folder, empty and durable. What is done elsewhere, and to SQLite's shared memory, which it makes
            anew after a crash whatever it finds, is left out.
    """

    def __init__(self, root: Path) -> None:
        self._prefix = f'{root}/'
        self._count = 0
        self._root = Folder(0, 0o700)
        self._descriptors: dict[int, _Descriptor] = {}
        self._made: dict[Operation, list[Change]] = {}
        self._covered: dict[Sync, tuple[Node, list[Change]]] = {}

    # -- what is done ------------------------------------------------------------------------------------------

    def take(self, moment: Moment) -> bool:
        """Follows one moment of a trace; returns whether something may be on the disk now that could not be before."""
        operation, ends = moment
        match operation:
            case Sync():
                return self._sync(operation, ends=ends)
            case Open() if ends:
                self._describe(operation)
            case Close() if not ends:  # from its beginning on, the number may be given out again
                self._descriptors.pop(operation.descriptor, None)
            case Duplicate() if ends and operation.descriptor in self._descriptors:
                self._descriptors[operation.second] = self._descriptors[operation.descriptor]
            case Seek() if ends and operation.descriptor in self._descriptors:
                self._descriptors[operation.descriptor].offset = operation.offset
            case _:
                pass
        if ends:
            for change in self._made.pop(operation, ()):
                change.ended = True
            return False
        changes = self._changes(operation)
        if changes:
            self._made[operation] = changes
        return bool(changes)

    def _changes(self, operation: Operation) -> list[Change]:  # noqa: PLR0911 - one for each kind
        match operation:
            case Open() if self._is_inside(operation.path):
                return self._opened(operation)
            case Write():
                return self._written(operation)
            case Resize():
                node = self._node_of(operation.file)
                return [self._resized(node, operation.size, grows=operation.grows)] if node is not None else []
            case ChangeMode():
                node = self._node_of(operation.file)
                return [self._mode_set(node, operation.mode)] if node is not None else []
            case MakeFolder(path=path) if self._is_inside(path):
                return [self._named(f'the folder {self._short(path)}', (path, self._new(Folder, operation.mode)))]
            case Link(path=path, to=to) if self._is_inside(to):
                return [self._named(f'{self._short(path)} linked as {self._short(to)}', (to, self._find(path)))]
            case Rename(path=path, to=to) if self._is_inside(path) or self._is_inside(to):
                node = self._find(path)
                if self._find(to) is node:  # two names of one file: nothing happens
                    return []
                words = f'{self._short(path)} renamed to {self._short(to)}'
                return [self._named(words, (path, None), (to, node))]
            case Swap(path=path, to=to) if self._is_inside(path) or self._is_inside(to):
                words = f'{self._short(path)} swapped with {self._short(to)}'
                return [self._named(words, (path, self._find(to)), (to, self._find(path)))]
            case Remove(path=path) if self._is_inside(path):
                return [self._named(f'{self._short(path)} removed', (path, None))]
            case _:
                return []

    def _opened(self, operation: Open) -> list[Change]:
        node = self._find(operation.path)
        if node is None:
            if not operation.creates:
                raise NotUnderstood(f'line {operation.line}: {operation.path} was there before the program began')
            return [
                self._named(
                    f'the new file {self._short(operation.path)}', (operation.path, self._new(File, operation.mode))
                )
            ]
        return [self._resized(node, 0, grows=False)] if operation.empties else []

    def _describe(self, operation: Open) -> None:
        if self._is_inside(operation.path):
            node = self._find(operation.path)
            assert node is not None
            self._descriptors[operation.descriptor] = _Descriptor(node, appends=operation.appends)

    def _written(self, operation: Write) -> list[Change]:
        descriptor = self._described(operation)
        if descriptor is None or not operation.data:
            return []
        node = descriptor.node
        assert isinstance(node, File)
        offset = operation.offset
        if descriptor.appends:
            offset = node.size_now
        elif offset is None:
            offset = descriptor.offset
        if operation.offset is None:
            descriptor.offset = offset + len(operation.data)
        node.size_now = max(node.size_now, offset + len(operation.data))
        changes: list[Change] = []
        for begin, data in pages(operation.data, offset):
            words = f'{len(data)} bytes at {begin} of {self._short(operation.path)} (line {operation.line})'
            changes.append(Written(self._next(), words, data, begin))
        node.changes += changes
        return changes

    def _resized(self, node: Node, size: int, *, grows: bool) -> Change:
        assert isinstance(node, File)
        node.size_now = max(node.size_now, size) if grows else size
        change = Resized(self._next(), f'the size {size} of {self._name_of(node)}', size, grows=grows)
        node.changes.append(change)
        return change

    def _mode_set(self, node: Node, mode: int) -> Change:
        change = ModeSet(self._next(), f'the mode {mode:o} of {self._name_of(node)}', mode)
        node.changes.append(change)
        return change

    def _named(self, words: str, *names: tuple[str, Node | None]) -> Change:
        changed: list[tuple[Folder, str, Node | None]] = []
        for path, node in names:
            if self._is_inside(path):
                folder, name = self._folder_of(path)
                changed.append((folder, name, node))
                folder.now.pop(name, None)
                if node is not None:
                    folder.now[name] = node
        change = Named(self._next(), words, changed)
        for folder in {folder for folder, _, _ in changed}:
            folder.changes.append(change)
        return change

    def _sync(self, operation: Sync, *, ends: bool) -> bool:
        if not ends:
            descriptor = self._described(operation)
            if descriptor is not None:
                wanted = Written | Resized if operation.data_only and isinstance(descriptor.node, File) else Change
                covered = [each for each in descriptor.node.changes if each.ended and isinstance(each, wanted)]
                self._covered[operation] = descriptor.node, covered
            return False
        node, covered = self._covered.pop(operation, (None, []))
        touched = {node} if node is not None else set()
        for change in covered:
            if operation.failed:
                change.forgotten = change.forgotten or isinstance(change, Written)
            elif not change.forgotten:
                change.durable = True
                touched |= {folder for folder, _, _ in change.names} if isinstance(change, Named) else set()
        for each in touched:
            each.settle()
        return False

    # -- where -------------------------------------------------------------------------------------------------

    def _is_inside(self, path: str) -> bool:
        return (path + '/').startswith(self._prefix) and not path.endswith('-shm')

    def _short(self, path: str) -> str:
        return path.removeprefix(self._prefix)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in filter(None, self._short(path + '/').split('/')):
            node = node.now.get(name) if isinstance(node, Folder) else None
        return node if self._is_inside(path) else None

    def _folder_of(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition('/')
        folder = self._find(above)
        if not isinstance(folder, Folder):
            raise NotUnderstood(f'{path} is in no known folder')
        return folder, name

    def _node_of(self, file: int | str) -> Node | None:
        if isinstance(file, int):
            descriptor = self._descriptors.get(file)
            return descriptor.node if descriptor is not None else None
        return self._find(file)

    def _described(self, operation: Write | Sync) -> _Descriptor | None:
        """Returns the descriptor of a write or a sync within this folder; its path as the kernel told it must agree."""
        descriptor = self._descriptors.get(operation.descriptor)
        if not operation.path or (descriptor is None and not self._is_inside(operation.path)):
            return descriptor
        if descriptor is None or self._find(operation.path) is not descriptor.node:
            raise NotUnderstood(f'line {operation.line}: {operation.path} is another file than it is taken for')
        return descriptor

    def _name_of(self, wanted: Node) -> str:
        found = (path for path, leaf in self.everything().items() if leaf.number == wanted.number)
        return next(found, 'a removed file')

    def _new(self, kind: type[File] | type[Folder], mode: int) -> Node:
        return kind(self._next(), mode & ~UMASK)

    def _next(self) -> int:
        self._count += 1
        return self._count

    # -- what may be there -------------------------------------------------------------------------------------

    def pending(self) -> list[Change]:
        """Returns the changes that a power cut may take, in their order."""
        found: dict[int, Change] = {}
        seen: set[Node] = set()
        left: list[Node] = [self._root]
        while left:
            node = left.pop()
            if node not in seen:
                seen.add(node)
                found |= {change.number: change for change in node.changes if not change.durable}
                left += node.ever() if isinstance(node, Folder) else ()
        return [found[number] for number in sorted(found)]

    def state(self, fates: Fates) -> State:
        """Returns what is found when these changes, and those that are durable, came to the disk, and no others."""
        found: State = {}
        self._collect(self._root, '', fates, found)
        return found

    def everything(self) -> State:
        """Returns what the program sees."""
        return self.state(dict.fromkeys(self.pending()))

    def _collect(self, folder: Folder, path: str, fates: Fates, found: State) -> None:
        for name, node in sorted((folder.after(fates) if folder.changes else folder.entries).items()):
            content = node.after(fates) if isinstance(node, File) else None
            found[path + name] = Leaf(node.number, content, node.mode_after(fates) if node.changes else node.mode)
            if isinstance(node, Folder):
                self._collect(node, f'{path}{name}/', fates, found)


# -- which of it is tried --------------------------------------------------------------------------------------


def power_cuts(pending: Sequence[Change], chance: random.Random, *, most: int, chances: int) -> Iterator[Fates]:
    """Yields what may have become of the changes that are not durable.

    Nothing of them, all of them; each prefix of them, its last write whole and torn; all but one, and one alone; then
    combinations by chance, with writes torn anywhere.

    Args:
        pending: The changes, in their order.
        chance: Where the chances come from.
        most: How many of a kind are tried where there are many changes.
        chances: How many combinations by chance.
    """
    everything: Fates = dict.fromkeys(pending)
    yield {}
    yield everything
    for at in _some(len(pending), chance, most):
        before: Fates = dict.fromkeys(pending[:at])
        yield before
        yield {**before, pending[at]: _tear(pending[at], chance)}
    for at in _some(len(pending), chance, most):
        yield {change: None for change in pending if change is not pending[at]}
        yield {pending[at]: None}
    for _ in range(chances if pending else 0):
        likely, torn = chance.choice((0.2, 0.5, 0.8, 0.95)), chance.choice((0.0, 0.2, 0.7))
        kept = [change for change in pending if chance.random() < likely]
        yield {change: _tear(change, chance) if chance.random() < torn else None for change in kept}


def _some(count: int, chance: random.Random, most: int) -> Sequence[int]:
    return range(count) if count <= most else sorted(chance.sample(range(count), most))


def _tear(change: Change, chance: random.Random) -> Tear | None:
    """Returns how far a write has come, somewhere within it; None for what cannot be torn."""
    if not isinstance(change, Written):
        return None
    return Tear(chance.randrange(len(change.data)), chance.random() < 0.3)
