"""Search by meaning: the messages of all desks in a folder that may be deleted at any time.

The folder is a copy. `marks` tells how far it goes, so that whoever has the messages can add the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from trading_agent.index.embedding import Embedder, meaning
from trading_agent.index.results import Passage, mark_after
from trading_agent.index.vector_folder import VectorFolder, VectorsBusy, VectorsDamaged

__all__ = ['Near', 'Passage', 'Vectors', 'VectorsBusy', 'VectorsDamaged']

_BATCH = 32
_REMOVED_AT_ONCE = 1000


class Near(msgspec.Struct, frozen=True):
    """One message that was found, named as its `Passage` was.

    Attributes:
        score: The cosine between query and message: 1.0 for the same meaning, about 0 for nothing in common.
    """

    desk: str
    session_id: str
    number: int
    score: float


class Vectors:
    """The messages by meaning. One process at a time has the folder; its threads may call side by side.

    Args:
        folder: `<workspace>/vectors`, made where it is missing. A lock file stays beside it.
        embedder: The model; None loads it.
        wait: How long to wait for another process that has the folder, in seconds.
        on_damage: Is told where a folder that is damaged, or of another version or model, was moved to. What was in it
            has to be added again.

    Raises:
        SemanticUnavailable: The extra `semantic` is not installed.
        VectorsBusy: Another process has the folder.
        StorageError: The disk or its permissions are in the way.
    """

    def __init__(
        self,
        folder: Path,
        embedder: Embedder | None = None,
        *,
        wait: float = 5.0,
        on_damage: Callable[[Path], None] | None = None,
    ) -> None:
        self._embedder = embedder or Embedder()
        self._folder = VectorFolder(folder, self._embedder.name, wait, on_damage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the folder. Closing twice is no error."""
        self._folder.close()

    def marks(self) -> dict[tuple[str, str], int]:
        """Returns the highest number that was added of each session, by desk and session id.

        Where the folder was deleted meanwhile, there are none.
        """
        with suppress(VectorsDamaged), self._folder.using('read'):
            return {
                (desk, session_id): number
                for desk, sessions in self._folder.marks.items()
                for session_id, number in sessions.items()
            }
        return {}

    def add(self, passages: Sequence[Passage]) -> None:
        """Embeds messages and stores them; one that is there already is replaced.

        It takes about 20 ms of one core for a message. What `marks` says is never ahead of what is stored, also when
        the process is killed.

        Args:
            passages: Any number. Those of one session in the order of their numbers, without a gap after its mark.

        Raises:
            VectorsDamaged: Nothing is stored any more: begin again, with what `marks` says now.
            StorageError: It could not be stored; `marks` says how far it came.
        """
        for start in range(0, len(passages), _BATCH):
            batch = passages[start : start + _BATCH]
            entries = {key: entry for passage in batch for key, entry in self._entries(passage)}
            with self._folder.using('add to') as collection:
                collection.upsert(
                    ids=list(entries),
                    embeddings=[vector for vector, _ in entries.values()],
                    metadatas=[about for _, about in entries.values()],
                )
                for passage in batch:
                    sessions = self._folder.marks.setdefault(passage.desk, {})
                    sessions[passage.session_id] = mark_after(sessions.get(passage.session_id, 0), passage.number)
                self._folder.save()

    def forget(self, desk: str, session_id: str) -> None:
        """Removes one session: its mark first, then its messages. Where it was cut off, the next call removes the rest.

        Raises:
            VectorsDamaged: Nothing is stored any more.
            StorageError: Not all could be removed.
        """
        where = {'$and': [{'desk': desk}, {'session_id': session_id}]}
        with self._folder.using('remove from') as collection:
            sessions = self._folder.marks.pop(desk, {})
            sessions.pop(session_id, None)
            if sessions:
                self._folder.marks[desk] = sessions
            self._folder.save(count=0)
            while ids := collection.get(where=where, limit=_REMOVED_AT_ONCE, include=[])['ids']:
                collection.delete(ids=ids)
            self._folder.save()

    def search(
        self,
        text: str,
        *,
        limit: int = 10,
        desk: str | None = None,
        first: date | None = None,
        last: date | None = None,
    ) -> list[Near]:
        """Returns the messages that are nearest to a text in meaning, the nearest first.

        Args:
            text: What to look for, in any words.
            limit: How many at most.
            desk: Only what was said at this desk.
            first: Only trading dates from this one on.
            last: Only trading dates up to and with this one.

        Raises:
            VectorsDamaged: Nothing is stored any more.
            StorageError: The disk or its permissions are in the way.
        """
        (vector,) = self._embedder.embed([text])
        where = _where(desk, first, last)
        best: dict[tuple[str, str, int], Near] = {}
        asked = limit
        while len(best) < limit:
            asked *= 4  # a long message may be found many times over, by each of its windows
            with self._folder.using('search in') as collection:
                found = collection.query(
                    query_embeddings=[vector], n_results=asked, where=where, include=['metadatas', 'distances']
                )
            (abouts,), (distances,) = found['metadatas'], found['distances']
            for about, distance in zip(abouts, distances, strict=True):
                key = (about['desk'], about['session_id'], about['number'])
                best.setdefault(key, Near(*key, score=max(-1.0, min(1.0, 1.0 - distance))))
            if len(abouts) < asked:
                break
        return list(best.values())[:limit]

    def _entries(self, passage: Passage) -> Iterator[tuple[str, tuple[list[float], dict[str, Any]]]]:
        """Yields an id, a vector and what is stored about it for each window of a message."""
        heading, said = meaning(passage.text)
        about = {
            'desk': passage.desk,
            'session_id': passage.session_id,
            'number': passage.number,
            'trading_date': _number(passage.trading_date),
        }
        for window, vector in enumerate(self._embedder.windows(said, heading)):
            yield f'{passage.desk}/{passage.session_id}/{passage.number}/{window}', (vector, about)


def _number(day: date) -> int:
    """Returns a date as a number such as 20261019, for Chroma compares only numbers."""
    return day.year * 10_000 + day.month * 100 + day.day


def _where(desk: str | None, first: date | None, last: date | None) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = []
    if desk is not None:
        conditions.append({'desk': desk})
    if first is not None:
        conditions.append({'trading_date': {'$gte': _number(first)}})
    if last is not None:
        conditions.append({'trading_date': {'$lte': _number(last)}})
    return {'$and': conditions} if len(conditions) > 1 else conditions[0] if conditions else None
