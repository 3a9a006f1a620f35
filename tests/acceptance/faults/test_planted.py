"""Each fault that is planted into the program turns the suite red."""

import os

import planted
import pytest
import torture

from trading_agent import files


@pytest.mark.parametrize('fault', planted.FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """A part of the suite finds the fault: its shortest run has something to say, and nothing where none is planted."""
    part = torture.finder_of(fault)
    if part is None:
        lacking = {part.name: torture.lacks(part.name) for part in torture.PARTS if torture.lacks(part.name)}
        assert lacking, 'no part says that it finds it'
        assert not os.environ.get('TRADING_AGENT_TEST_ALL'), lacking
        pytest.skip(f'whoever finds it cannot run here: {lacking}')
    assert torture.module_of(part).trial(fault).faults, f'{part} does not find it'


def test_a_planted_fault_is_taken_out_again() -> None:
    """A fault is there for as long as it is planted, and no longer."""
    before = files.append
    with planted.planted('no fdatasync on append'):
        assert files.append is not before
    assert files.append is before


def test_a_fault_that_cannot_be_planted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault whose place in the program has changed is an error: it never counts as found without being there."""
    monkeypatch.setitem(planted.FAULTS, 'stale', [planted.Edit('files', 'append', 'what no longer stands there', '')])
    with pytest.raises(LookupError, match=r'stands 0 times in files\.append'), planted.planted('stale'):
        pass
