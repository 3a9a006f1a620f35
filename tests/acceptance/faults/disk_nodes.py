"""Files and folders, and the changes to them: what of it is durable, and what a power cut may take."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PAGE = 4096
"""What the kernel writes back at once: the pages of one write come to the disk in any order."""


class Tear(NamedTuple):
    """How far a write has come: so many of its bytes; and whether the file's size has gone ahead of them."""

    length: int
    zeros: bool


class Leaf(NamedTuple):
    """What stands at a path: a file's bytes, or None for a folder. Two paths with one number are one file."""

    number: int
    content: bytes | None
    mode: int


State = dict[str, Leaf]
"""What is on the disk, by the path from its root, folders before what is in them."""


class Change:
    """Something that a call has changed.

    Attributes:
        words: What, for people.
        ended: Whether the call has returned: only then a sync is sure to find it.
        durable: Whether it is there after a power cut, whatever happens.
        forgotten: Whether a sync of it has failed: no later one makes it durable.
    """

    def __init__(self, number: int, words: str) -> None:
        self.number = number
        self.words = words
        self.ended = False
        self.durable = False
        self.forgotten = False

    def __repr__(self) -> str:
        return self.words


Fates = Mapping[Change, Tear | None]
"""The changes that came to the disk, each with how far it was torn, None for whole; all others are lost."""


class Written(Change):
    """Bytes were written to a file."""

    def __init__(self, number: int, words: str, data: bytes, offset: int) -> None:
        super().__init__(number, words)
        self.data = data
        self.offset = offset

    def apply(self, content: bytearray, tear: Tear | None) -> None:
        data = self.data if tear is None else self.data[: tear.length]
        end = self.offset + (len(self.data) if tear is None or tear.zeros else len(data))
        if data or (tear is not None and tear.zeros):
            content.extend(bytes(max(0, end - len(content))))  # a hole; nothing in the place of what was there
        content[self.offset : self.offset + len(data)] = data


class Resized(Change):
    """A file was cut off, or made longer by zeros."""

    def __init__(self, number: int, words: str, size: int, *, grows: bool) -> None:
        super().__init__(number, words)
        self.size = size
        self.grows = grows

    def apply(self, content: bytearray) -> None:
        if not self.grows:
            del content[self.size :]
        content.extend(bytes(max(0, self.size - len(content))))


class ModeSet(Change):
    """A file's or folder's mode was changed."""

    def __init__(self, number: int, words: str, mode: int) -> None:
        super().__init__(number, words)
        self.mode = mode


class Named(Change):
    """A folder, or two of them, have other names in them: all of this change or nothing of it."""

    def __init__(self, number: int, words: str, names: Sequence[tuple['Folder', str, 'Node | None']]) -> None:
        super().__init__(number, words)
        self.names = names


def pages(data: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yields the parts of a write that are in one page each, with the place of each."""
    begin = offset
    while begin < offset + len(data):
        end = min(begin - begin % PAGE + PAGE, offset + len(data))
        yield begin, data[begin - offset : end - offset]
        begin = end


class Node:
    """A file or a folder, whatever its names: what of it is durable, and the changes since."""

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.changes: list[Change] = []

    def mode_after(self, fates: Fates) -> int:
        mode = self.mode
        for change in self.changes:
            if isinstance(change, ModeSet) and (change.durable or change in fates):
                mode = change.mode
        return mode

    def settle(self) -> None:
        """Takes into what is durable the changes that are, up to the first that is not: their order counts."""
        while self.changes and self.changes[0].durable:
            self._take(self.changes.pop(0))

    def _take(self, change: Change) -> None:
        if isinstance(change, ModeSet):
            self.mode = change.mode


class File(Node):
    def __init__(self, number: int, mode: int) -> None:
        super().__init__(number, mode)
        self.data = b''
        self.size_now = 0

    def after(self, fates: Fates) -> bytes:
        content: bytearray | None = None
        for change in self.changes:
            if (change.durable or change in fates) and isinstance(change, Written | Resized):
                content = bytearray(self.data) if content is None else content
                if isinstance(change, Written):
                    change.apply(content, None if change.durable else fates[change])
                else:
                    change.apply(content)
        return self.data if content is None else bytes(content)

    def _take(self, change: Change) -> None:
        super()._take(change)
        content = bytearray(self.data)
        if isinstance(change, Written):
            change.apply(content, None)
        elif isinstance(change, Resized):
            change.apply(content)
        self.data = bytes(content)


class Folder(Node):
    def __init__(self, number: int, mode: int) -> None:
        super().__init__(number, mode)
        self.entries: dict[str, Node] = {}
        self.now: dict[str, Node] = {}

    def after(self, fates: Fates) -> dict[str, Node]:
        entries = dict(self.entries)
        for change in self.changes:
            if (change.durable or change in fates) and isinstance(change, Named):
                self._put(change, entries)
        return entries

    def ever(self) -> Iterator[Node]:
        """Yields what may be found here under any name."""
        yield from self.entries.values()
        for change in self.changes:
            if isinstance(change, Named):
                yield from (node for folder, _, node in change.names if folder is self and node is not None)

    def _take(self, change: Change) -> None:
        super()._take(change)
        if isinstance(change, Named):
            self._put(change, self.entries)

    def _put(self, change: Named, entries: dict[str, Node]) -> None:
        for folder, name, node in change.names:
            if folder is self:
                entries.pop(name, None)
                if node is not None:
                    entries[name] = node
