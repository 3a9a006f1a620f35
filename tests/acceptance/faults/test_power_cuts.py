"""A short run of the power cuts."""

import os
import shutil
from pathlib import Path

import images
import power_cuts
import pytest
from findings import Budget


@pytest.fixture(autouse=True)
def _able() -> None:
    if why := power_cuts.missing():
        assert not os.environ.get('TRADING_AGENT_TEST_ALL'), why
        pytest.skip(f'no power is cut: {why}')


def test_nothing_acknowledged_is_lost_by_a_power_cut() -> None:
    """Over ten power cuts of ext4 and XFS, whatever was acknowledged or told is there, and the desks go on."""
    found = power_cuts.run(Budget(rounds=10))
    found.check()
    assert found.counts['power_cuts_ext4'] >= 5
    if shutil.which('mkfs.xfs') is None:
        assert not os.environ.get('TRADING_AGENT_TEST_ALL'), images.missing('xfs')
        pytest.skip(f'only ext4 was tried: {images.missing("xfs")}')
    assert found.counts['power_cuts_xfs'] >= 5


@pytest.mark.parametrize('synced', [True, False])
def test_what_is_not_synced_is_gone(*, synced: bool) -> None:
    """A power cut takes what was not synced, and nothing else: else the others would prove nothing."""

    def cut() -> bool:
        with images.in_memory(2 * images.SIZES['ext4']) as folder:
            image = images.Image('ext4', folder)
            image.make()
            with image.mounted() as mounted:
                descriptor = os.open(mounted / 'file', os.O_WRONLY | os.O_CREAT, 0o600)
                os.write(descriptor, b'hello\n')
                if synced:
                    os.fsync(descriptor)
                image.shut_down()
                os.close(descriptor)
            with image.mounted() as mounted:
                return (mounted / 'file').exists() and (mounted / 'file').read_bytes() == b'hello\n'

    assert images.apart(cut) is synced


def test_nothing_is_left_mounted() -> None:
    """What is mounted apart is seen by nobody else, and is gone with the thread that asked for it, on a failure too."""

    def fail() -> None:
        images._run('mount', '-t', 'tmpfs', 'tmpfs', '/mnt')
        (Path('/mnt') / 'file').touch()
        raise KeyError('as told')

    before = Path('/proc/mounts').read_text()
    with pytest.raises(KeyError):
        images.apart(fail)
    assert Path('/proc/mounts').read_text() == before
    assert not (Path('/mnt') / 'file').exists()
