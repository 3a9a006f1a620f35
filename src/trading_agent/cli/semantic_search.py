"""Search by meaning, joined with search by words: the vectors are caught up from the index when they are asked."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import click
import msgspec

from trading_agent.cli.index_use import VECTORS
from trading_agent.cli.progress import bar
from trading_agent.index.results import Hit, Passage
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.index.vectors import Near, Vectors, VectorsDamaged

_WORD = re.compile(r'\w+')
_ADDED_AT_ONCE = 32
_TRIES = 3

_MORE = 50
"""How many more are looked at than are wanted, so that what is good in both ways comes to the front."""

_RANK_OFFSET = 5
_ALL_WORDS = 2.0
_SOME_WORDS = 0.3
"""How much a rank by words counts where a message has all of them, and where none has. Tried on two days of exchange
announcements: an amount comes first, and what is near in meaning does not lose its place to what only has a word."""

_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        """a about all an and any are as at be been by can did do does for from had has have how i in into is it its me
        my no not of on or our s so that the their there they this to us was we were what when where which who why
        will with you your"""
    )
)
"""English words that say nothing by themselves."""


@contextmanager
def open_vectors(workspace: Path) -> Iterator[Vectors]:
    """Opens the vectors of a workspace; an empty folder is made where there is none.

    Raises:
        SemanticUnavailable: The extra `semantic` is not installed.
        VectorsBusy: Another process has the vectors.
        StorageError: They cannot be read or written.
    """
    with Vectors(workspace / VECTORS, on_damage=_tell_damaged) as vectors:
        yield vectors


def search_by_meaning(
    index: SqliteIndex,
    vectors: Vectors,
    query: str,
    *,
    desk: str | None,
    first: date | None,
    last: date | None,
    limit: int,
) -> list[Hit]:
    """Returns the messages that mean what the query means, the nearest first; its words count as well.

    What has words of the query moves up, far where it has all of them: a symbol or an amount has no meaning, and is
    found by its letters alone.

    Args:
        index: The index, caught up.
        vectors: The vectors, which are caught up here.
        query: What to look for, in any words.
        desk: Only of this desk; None for all.
        first: Only of trading dates from this one on.
        last: Only of trading dates up to and with this one.
        limit: How many at most.

    Raises:
        VectorsDamaged: They are damaged again and again.
        StorageError: They cannot be read or written.
    """

    def is_wanted(passage: Passage) -> bool:
        return (
            desk in (None, passage.desk)
            and (first is None or passage.trading_date >= first)
            and (last is None or passage.trading_date <= last)
        )

    for tries_left in reversed(range(_TRIES)):
        try:
            _forget_what_is_gone(vectors, index, desk)
            _catch_up(vectors, index, is_wanted)
            near = vectors.search(query, limit=limit + _MORE, desk=desk, first=first, last=last)
        except VectorsDamaged:
            if not tries_left:
                raise
        else:
            break
    by_words = index.search(content_words(query), limit=limit + _MORE, desk=desk, first=first, last=last)
    return joined(query, list(_hits(index, near)), by_words)[:limit]


def joined(query: str, by_meaning: Sequence[Hit], by_words: Sequence[Hit]) -> list[Hit]:
    """Joins what was found by meaning and by words into one list, the best first: reciprocal rank fusion.

    See Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
    Methods", SIGIR 2009. Of a query in plain words the meaning counts for more.
    """
    words = _WORD.findall(content_words(query).casefold())
    whole = bool(by_words) and all(word in by_words[0].text.casefold() for word in words)
    scores: dict[tuple[str, str, int], float] = {}
    hits: dict[tuple[str, str, int], Hit] = {}
    for found, weight in ((by_meaning, 1.0), (by_words, _ALL_WORDS if whole else _SOME_WORDS)):
        for rank, hit in enumerate(found, 1):
            key = (hit.desk, hit.session_id, hit.number)
            scores[key] = scores.get(key, 0.0) + weight / (_RANK_OFFSET + rank)
            hits[key] = hit  # the one by words has the match marked
    best_first = sorted(scores, key=lambda key: scores[key], reverse=True)
    return [msgspec.structs.replace(hits[key], score=scores[key]) for key in best_first]


def content_words(query: str) -> str:
    """Returns a query without the words that say nothing by themselves; all of it where there are no others."""
    kept = [word for word in query.split() if word.casefold().strip('.,;:!?') not in _FUNCTION_WORDS]
    return ' '.join(kept) or query


def _tell_damaged(aside: Path) -> None:
    click.echo(f'warning: the vectors were damaged and are made anew (the old ones are {aside})', err=True)


def _forget_what_is_gone(vectors: Vectors, index: SqliteIndex, only: str | None) -> None:
    """Removes the sessions whose last known message is no longer in the index: their files are others now.

    Of one desk alone where only that desk was read into the index.
    """
    for (desk, session_id), number in vectors.marks().items():
        if only in (None, desk) and index.message(desk, session_id, number) is None:
            vectors.forget(desk, session_id)


def _catch_up(vectors: Vectors, index: SqliteIndex, is_wanted: Callable[[Passage], bool]) -> None:
    marks = vectors.marks()
    missing = sum(sum(map(is_wanted, batch)) for batch in index.passages(marks))
    if not missing:
        return
    count = f'{missing:,} message{"" if missing == 1 else "s"}'
    click.echo(f'the vectors are {count} behind: they are being caught up', err=True)
    done = 0
    with bar('reading for their meaning', unit='messages') as advance:
        for batch in index.passages(marks):
            wanted = list(filter(is_wanted, batch))
            for start in range(0, len(wanted), _ADDED_AT_ONCE):
                part = wanted[start : start + _ADDED_AT_ONCE]
                vectors.add(part)
                done += len(part)
                advance(done, missing, f'{part[-1].desk} {part[-1].session_id}')


def _hits(index: SqliteIndex, near: Sequence[Near]) -> Iterator[Hit]:
    for one in near:
        hit = index.message(one.desk, one.session_id, one.number)
        if hit is not None:
            yield msgspec.structs.replace(hit, score=one.score)
