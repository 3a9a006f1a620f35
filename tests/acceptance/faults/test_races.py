"""Races in the short run: each of them once, and what they have found before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import races
from index_days import Day

from trading_agent import swap
from trading_agent.index import comparison, feed
from trading_agent.index.sqlite import SqliteIndex


@pytest.mark.parametrize('name', races.RACES)
def test_a_race(name: str) -> None:
    """Whoever comes first: nothing is lost, nothing is done twice, nobody is told wrong."""
    races.run_race(name, 'short').check()


def test_a_check_of_the_index_while_a_session_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is begun and read between the two looks of a check is no difference."""
    Day(tmp_path, session_id='2026-10-19-1').say('zebra')
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
        real = feed.places

        def places(*arguments: Any) -> Any:  # noqa: ANN401 - as it was
            if len(sessions) == 1:
                sessions.append('2026-10-20-1')
                Day(tmp_path, session_id=sessions[-1]).say('zebra')
                with SqliteIndex(tmp_path) as other:
                    other.catch_up()
            return real(*arguments)

        sessions = ['2026-10-19-1']
        monkeypatch.setattr(comparison, 'places', places)
        assert index.check(patience=0) == []
        assert len(sessions) == 2


# -- putting a file in its place ---------------------------------------------------------------------------------


def nothing(_: bytes | None) -> None:
    """Has nothing against it."""


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A new text."""
    path = tmp_path / 'new'
    path.write_text('new')
    return path


@pytest.mark.parametrize('there', [True, False])
def test_a_file_is_put_in_place(tmp_path: Path, new: Path, *, there: bool) -> None:
    """The new text stands where the old one did, or where there was none."""
    path = tmp_path / 'text'
    if there:
        path.write_text('old')
    seen: list[bytes | None] = []
    swap.put_in_place(new, path, seen.append)
    assert path.read_text() == 'new'
    assert set(seen) == {b'old' if there else None}


@pytest.mark.parametrize('can_exchange', [True, False])
def test_an_objection_leaves_what_is_there(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool
) -> None:
    """What the check raises comes out, and the old text is where it was."""
    if not can_exchange:
        monkeypatch.setattr(swap, 'exchange', lambda *_: False)
    path = tmp_path / 'text'
    path.write_text('old')

    def objecting(_: bytes | None) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        swap.put_in_place(new, path, objecting)
    assert path.read_text() == 'old'
    swap.put_in_place(new, path, nothing)
    assert path.read_text() == 'new'


@pytest.mark.parametrize('what', ['changed', 'removed', 'made'])
def test_what_is_done_right_before_the_rename_is_seen(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A file that is changed, removed or made after the look and before the rename is shown to the check as it is."""
    path = tmp_path / 'text'
    if what != 'made':
        path.write_text('old')
    meanwhile: list[Callable[[], object]] = [path.unlink if what == 'removed' else lambda: path.write_text('mine')]
    seen: list[bytes | None] = []

    def check(present: bytes | None) -> None:
        seen.append(present)
        if len(seen) > 1 and present == b'mine':
            raise LookupError
        if meanwhile and what == 'made':
            meanwhile.pop()()

    real = swap.exchange

    def exchange(one: Path, other: Path) -> bool:
        if meanwhile:
            meanwhile.pop()()
        return real(one, other)

    monkeypatch.setattr(swap, 'exchange', exchange)
    if what == 'removed':
        swap.put_in_place(new, path, check)
        assert (seen, path.read_text()) == ([b'old', None], 'new')
    else:
        with pytest.raises(LookupError):
            swap.put_in_place(new, path, check)
        assert (seen, path.read_text()) == ([b'old' if what == 'changed' else None, b'mine'], 'mine')
