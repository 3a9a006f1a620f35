"""What a power cut may leave at any moment of a story is opened by the desks' start: every promise is kept."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import crash_states
import pytest
import recordings
import system_calls
from disk_nodes import Leaf, State
from file_operations import Moment
from findings import Budget
from state_folder import StateFolder

if crash_states.missing() and not os.environ.get('TRADING_AGENT_TEST_ALL'):
    pytest.skip(crash_states.missing(), allow_module_level=True)


def test_every_promise_is_kept_whatever_a_power_cut_leaves() -> None:
    """Two rounds open over a thousand states, at every so-manieth call of each chapter: nothing told is lost."""
    assert crash_states.missing() == ''
    findings = crash_states.run(Budget(rounds=2))
    findings.check()
    assert findings.counts['crash_points'] >= 30
    assert findings.counts['crash_states'] >= 400
    assert findings.counts['gone_on_with'] >= 50
    assert findings.counts['indexes_made_anew'] == 0


def test_a_recording_has_what_was_done_and_what_was_promised() -> None:
    """A chapter that goes on from what a killed process left begins there; all before is what it begins from."""
    (chapter,) = recordings.record(['ended'])
    marks = [moment for moment in chapter.moments if not isinstance(moment, Moment)]
    assert chapter.moments[chapter.begins] in marks
    told = [mark['what'] for mark in marks]
    assert told[:3] == ['session', 'accepted', 'closed']
    assert told.count('left') == 1
    first = next(crash_states._points(chapter, lambda number, _: not number))
    assert (first.words, first.disk.pending()) == ('left ', [])
    assert not chapter.root.exists()


def test_a_model_that_misses_a_call_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the trace does not explain what is on the disk, nothing is concluded from it."""
    monkeypatch.setitem(system_calls._READERS, 'pwrite64', lambda _: None)
    with pytest.raises(recordings.ModelWrong, match='the model is wrong about'):
        recordings.record(['ended'])


# -- the folder that takes on states -----------------------------------------------------------------------------

ONE: State = {
    'sub': Leaf(1, None, 0o700),
    'sub/a': Leaf(2, b'text', 0o600),
    'sub/b': Leaf(2, b'text', 0o600),
    'c': Leaf(3, b'', 0o640),
}
OTHER: State = {'sub': Leaf(4, b'a file', 0o600), 'c': Leaf(5, None, 0o755), 'c/d': Leaf(6, b'x', 0o600)}


def _there(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    return {
        str(path.relative_to(folder)): (None if path.is_dir() else path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in folder.rglob('*')
    }


def _wanted(state: State) -> dict[str, tuple[bytes | None, int]]:
    return {name: (leaf.content, leaf.mode) for name, leaf in state.items()}


@pytest.mark.parametrize(
    'meddle',
    [
        lambda _: None,
        lambda folder: (folder / 'sub' / 'a').write_bytes(b'TEXT'),
        lambda folder: (folder / 'sub' / 'new').mkdir(),
        lambda folder: (folder / 'c').chmod(0o600),
        lambda folder: (folder / 'c').unlink(),
        lambda folder: shutil.rmtree(folder / 'sub'),
    ],
    ids=['nothing', 'written', 'made', 'mode', 'removed', 'gone'],
)
def test_a_folder_takes_on_a_state_whatever_was_done_in_it(tmp_path: Path, meddle: Callable[[Path], object]) -> None:
    """Files, folders, modes and second names are as in the state, and nothing else is there."""
    folder = StateFolder(tmp_path)
    for state in (ONE, OTHER, ONE, ONE):
        folder.put(state)
        assert _there(tmp_path) == _wanted(state)
    assert (tmp_path / 'sub' / 'a').samefile(tmp_path / 'sub' / 'b')
    meddle(tmp_path)
    folder.put(ONE)
    assert _there(tmp_path) == _wanted(ONE)


def test_what_is_as_it_has_to_be_is_not_written_again(tmp_path: Path) -> None:
    """A file that no state and nobody else has changed stays the same file."""
    folder = StateFolder(tmp_path)
    state: State = {'a': Leaf(1, b'a', 0o600), 'b': Leaf(2, b'b', 0o600)}
    folder.put(state)
    inodes = [(tmp_path / name).stat().st_ino for name in 'ab']
    folder.put({**state, 'b': Leaf(2, b'B', 0o600)})
    assert (tmp_path / 'a').stat().st_ino == inodes[0]
    assert (tmp_path / 'b').read_bytes() == b'B'
