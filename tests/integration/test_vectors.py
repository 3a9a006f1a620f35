"""The folder of vectors: what is found, what survives a kill, and what happens to a damaged one."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import vector_fakes
from vector_fakes import DAY, SESSION, FakeEmbedder, need_semantic_extra, passages

from trading_agent.errors import StorageError
from trading_agent.index.vectors import Near, Vectors, VectorsBusy, VectorsDamaged

FAKES = Path(vector_fakes.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace's folder of vectors, not made yet, where the extra is there to make it."""
    need_semantic_extra()
    return tmp_path / 'workspace' / 'vectors'


def opened(
    folder: Path, model: str = 'fake', *, wait: float = 5.0, on_damage: Callable[[Path], None] | None = None
) -> Vectors:
    """Opens the folder with a model that has no meaning."""
    return Vectors(folder, FakeEmbedder(model), wait=wait, on_damage=on_damage)


def numbers(found: list[Near]) -> list[int]:
    """Which messages were found, in order."""
    return [near.number for near in found]


# -- what is found ---------------------------------------------------------------------------------------------------


def test_the_nearest_come_first_with_their_score(folder: Path) -> None:
    """A message is found with its desk, session and number; the same text scores 1.0, a related one less."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain', 'rain~ in June', 'gold']))

        found = vectors.search('rain', limit=2)

    assert [(near.desk, near.session_id, near.number) for near in found] == [('main', SESSION, 1), ('main', SESSION, 2)]
    assert found[0].score == pytest.approx(1.0, abs=1e-5)
    assert 0.5 < found[1].score < 0.9999


def test_a_desk_and_dates_narrow_a_search(folder: Path) -> None:
    """`desk`, `first` and `last` leave out all others, the limits of the range belong to it, and they combine."""
    days = ['2026-01-31-1', '2026-02-01-1', '2026-02-01-2', '2027-01-01-1']
    with opened(folder) as vectors:
        for desk in ('main', 'other'):
            for session in days:
                vectors.add(passages(['rain'], desk=desk, session=session))

        def found(desk: str | None = None, first: date | None = None, last: date | None = None) -> set[tuple[str, str]]:
            nearest = vectors.search('rain', limit=100, desk=desk, first=first, last=last)
            return {(near.desk, near.session_id) for near in nearest}

        assert found() == {(desk, session) for desk in ('main', 'other') for session in days}
        assert found(desk='main') == {('main', session) for session in days}
        assert found(desk='nobody') == set()
        assert found(desk='other', first=date(2026, 2, 1)) == {('other', session) for session in days[1:]}
        assert found(desk='main', first=date(2026, 2, 1), last=date(2026, 2, 1)) == {('main', s) for s in days[1:3]}
        assert found(desk='main', last=date(2026, 1, 31)) == {('main', days[0])}
        assert found(first=date(2026, 2, 2), last=date(2026, 12, 31)) == set()


def test_a_message_found_by_many_windows_is_one_result(folder: Path) -> None:
    """However many windows of long messages are near, `limit` different messages come, each with its best window."""
    with opened(folder) as vectors:
        vectors.add(passages(['\n'.join(['rain', *(f'rain~ {line}' for line in range(40))])] * 3 + ['rain~ last']))

        found = vectors.search('rain', limit=4)

    assert sorted(numbers(found)) == [1, 2, 3, 4]
    assert numbers(found)[3] == 4
    assert found[0].score == pytest.approx(1.0, abs=1e-5)


def test_limits_at_their_edges(folder: Path) -> None:
    """A limit of 0 finds nothing, one larger than the folder finds all; an empty folder has nothing to find."""
    with opened(folder) as vectors:
        assert vectors.search('rain') == []
        vectors.add([])
        vectors.add(passages(['rain', 'gold', '']))
        assert vectors.search('rain', limit=0) == []
        assert len(vectors.search('rain', limit=1000)) == 3


def test_one_among_thousands_that_are_nearly_the_same_is_found(folder: Path) -> None:
    """Funds report by the thousand in almost the same words; each is still found by its own."""
    texts = [f'net asset value~ of fund {fund}' for fund in range(3000)]
    with opened(folder) as vectors:
        vectors.add(passages(texts))

        missed = [n for n in range(0, len(texts), 7) if numbers(vectors.search(texts[n], limit=1)) != [n + 1]]

    assert missed == []


# -- marks -----------------------------------------------------------------------------------------------------------


def test_marks_say_how_far_each_session_goes_and_are_kept(folder: Path) -> None:
    """The marks hold the highest number by desk and session, also after closing and opening."""
    marks = {('main', SESSION): 40, ('other', SESSION): 3, ('main', '2026-10-20-1'): 2}
    with opened(folder) as vectors:
        assert vectors.marks() == {}
        vectors.add(passages([str(number) for number in range(40)]))
        vectors.add(passages(['a', 'b', 'c'], desk='other') + passages(['d', 'e'], session='2026-10-20-1'))
        assert vectors.marks() == marks

    with opened(folder) as vectors:
        assert vectors.marks() == marks
        assert numbers(vectors.search('39', limit=1)) == [40]


def test_adding_again_changes_nothing(folder: Path) -> None:
    """A message that is added twice, in one call or in two, is there once, and its last text counts."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain', 'gold']))
        vectors.add([*passages(['rain', 'gold']), *passages(['silver'], first=2)])

        assert len(vectors.search('rain', limit=100)) == 2
        assert vectors.search('silver', limit=1)[0].score == pytest.approx(1.0, abs=1e-5)
        assert vectors.search('gold', limit=1)[0].score < 0.9
        assert vectors.marks() == {('main', SESSION): 2}


def test_forgetting_removes_one_session(folder: Path) -> None:
    """Its messages and its mark are gone, those of others stay, and it can be added again."""
    with opened(folder) as vectors:
        vectors.add(passages([f'{number}' for number in range(70)]))
        vectors.add(passages(['rain'], desk='other') + passages(['rain'], session='2026-10-20-1'))

        vectors.forget('main', SESSION)
        vectors.forget('main', 'never-was')

        left = {('other', SESSION): 1, ('main', '2026-10-20-1'): 1}
        assert vectors.marks() == left
        assert {(near.desk, near.session_id): near.number for near in vectors.search('5', limit=100)} == left
        vectors.add(passages(['5']))
        assert vectors.search('5', limit=1)[0].score == pytest.approx(1.0, abs=1e-5)

    with opened(folder) as vectors:
        assert vectors.marks() == {**left, ('main', SESSION): 1}


# -- the folder ------------------------------------------------------------------------------------------------------


def test_the_folder_is_for_its_owner(folder: Path) -> None:
    """The folder is 0700 whatever it was before, and so is a workspace that had to be made."""
    with opened(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with opened(folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_only_one_has_it_at_a_time(folder: Path) -> None:
    """A second one waits, then is told who has it; closing, or the holder's death, lets the next one in."""
    with opened(folder), pytest.raises(VectorsBusy, match=f'process {os.getpid()}'):
        opened(folder, wait=0.1)

    child = start_adding(folder)
    with pytest.raises(VectorsBusy, match=f'process {child.pid}'):
        opened(folder, wait=0)
    kill(child)
    opened(folder).close()


def test_it_waits_for_the_one_who_has_it(folder: Path) -> None:
    """Whoever opens it while another is about to close it gets it."""
    first = opened(folder)
    timer = threading.Timer(0.3, first.close)
    timer.start()
    began = time.monotonic()
    with opened(folder, wait=30):
        assert time.monotonic() - began >= 0.2
    timer.join()
    first.close()


def test_threads_share_it(folder: Path) -> None:
    """Searching and adding side by side lose nothing and fail nowhere."""
    failures: list[BaseException] = []

    def add(desk: str) -> None:
        try:
            for number in range(1, 60, 3):
                vectors.add(passages([f'{desk} {number}'] * 3, first=number, desk=desk))
                vectors.search(f'{desk} {number}')
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    with opened(folder) as vectors:
        threads = [threading.Thread(target=add, args=(desk,)) for desk in ('a', 'b', 'c')]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert vectors.marks() == {(desk, SESSION): 60 for desk in ('a', 'b', 'c')}
        assert len(vectors.search('a 1', limit=1000)) == 180


def test_what_the_environment_says_to_chroma_does_not_matter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither variables nor a `.env` beside the daemon turn the folder into a client of some server."""
    monkeypatch.setenv('CHROMA_API_IMPL', 'chromadb.api.fastapi.FastAPI')
    monkeypatch.setenv('CHROMA_SERVER_HOST', 'chroma.invalid')
    monkeypatch.setenv('ANONYMIZED_TELEMETRY', 'true')
    monkeypatch.setenv('MIGRATIONS', 'of birds')
    monkeypatch.chdir(tmp_path)
    (tmp_path / '.env').write_text('IS_PERSISTENT=false\nMIGRATIONS=none\n')
    with opened(folder) as vectors:
        vectors.add(passages(['rain']))
        assert numbers(vectors.search('rain')) == [1]


# -- killed ----------------------------------------------------------------------------------------------------------


def start_adding(folder: Path, saves: int = 0) -> subprocess.Popen[str]:
    """Starts a process that adds to the folder; returns once it has begun."""
    child = subprocess.Popen([sys.executable, FAKES, folder, str(saves)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == 'adding\n'
    return child


def kill(child: subprocess.Popen[str]) -> None:
    """Ends a process as a power cut would."""
    child.send_signal(signal.SIGKILL)
    child.communicate()


def assert_complete(vectors: Vectors) -> int:
    """Every message up to the mark is found, and once; returns the mark."""
    mark = vectors.marks().get(('main', SESSION), 0)
    everything = numbers(vectors.search('1', limit=10_000))
    assert len(everything) == len(set(everything))
    assert set(range(1, mark + 1)) <= set(everything)
    assert all(numbers(vectors.search(str(number), limit=1)) == [number] for number in range(1, mark + 1, 7))
    return mark


@pytest.mark.parametrize('saves', [1, 2, 9])
def test_a_kill_before_the_mark_is_saved_costs_no_more_than_adding_again(folder: Path, saves: int) -> None:
    """What was stored but not marked is there; adding from the mark on makes it complete, and nothing is twice."""
    child = start_adding(folder, saves)
    assert child.wait(60) == -signal.SIGKILL
    child.communicate()
    told: list[Path] = []

    with opened(folder, on_damage=told.append) as vectors:
        mark = assert_complete(vectors)
        # The first messages bring the first files of the graph; killed before these are recorded, nothing is trusted.
        assert (mark, len(told)) == ((saves - 1) * 8, 1 if saves == 1 else 0)
        vectors.add(passages([str(number) for number in range(mark + 1, 101)], first=mark + 1))
        assert assert_complete(vectors) == 100


def test_kills_at_any_instant(folder: Path) -> None:
    """Killed ten times at random while messages are added and the graph is written: what is marked is always found."""
    made = random.Random(20261019)  # noqa: S311 - not for secrets
    told: list[Path] = []
    for _ in range(10):
        child = start_adding(folder)
        time.sleep(made.uniform(0, 0.7))
        kill(child)
        with opened(folder, on_damage=told.append) as vectors:
            assert_complete(vectors)
    assert all(aside.is_dir() for aside in told)


# -- damaged ---------------------------------------------------------------------------------------------------------


def _database(folder: Path) -> Path:
    return folder / 'chroma.sqlite3'


def _graph(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f'*/{name}')
    return path


def _state(folder: Path, **changes: int) -> None:
    path = folder / 'state.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _another_programs(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / 'notes.txt').write_text('buy low')


DAMAGES: dict[str, Callable[[Path], object]] = {
    'database is garbage': lambda folder: _database(folder).write_bytes(b'\xff' * 50_000),
    'database is empty': lambda folder: _database(folder).write_bytes(b''),
    'database is cut off': lambda folder: os.truncate(_database(folder), 70_000),
    'database is gone': lambda folder: _database(folder).unlink(),
    'graph is torn': lambda folder: os.truncate(_graph(folder, 'data_level0.bin'), 1000),
    'graph has a wrong byte': lambda folder: _graph(folder, 'header.bin').write_bytes(b'\x02' * 100),
    'graph lacks a file': lambda folder: _graph(folder, 'length.bin').unlink(),
    'graph is gone': lambda folder: shutil.rmtree(_graph(folder, 'header.bin').parent),
    'state is gone': lambda folder: (folder / 'state.json').unlink(),
    'state is garbage': lambda folder: (folder / 'state.json').write_bytes(b'{"model":'),
    'state has another shape': lambda folder: _state(folder, more=1),
    'later version': lambda folder: _state(folder, version=99),
    'another program': _another_programs,
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_folder_is_set_aside_and_begun_anew(folder: Path, damage: str) -> None:
    """It is moved, whole, to a name with the time, its owner is told, and an empty one works in its place."""
    with opened(folder) as vectors:
        vectors.add(passages([str(number) for number in range(100)]))
    DAMAGES[damage](folder)
    before = {path.name for path in folder.iterdir()}
    told: list[Path] = []

    with opened(folder, on_damage=told.append) as vectors:
        (aside,) = told
        assert aside.parent == folder.parent
        assert aside.name.startswith('vectors.damaged-2')
        assert {path.name for path in aside.iterdir()} >= before
        assert vectors.marks() == {}
        assert vectors.search('5') == []
        vectors.add(passages(['rain']))
        assert numbers(vectors.search('rain')) == [1]

    with opened(folder, on_damage=told.append) as vectors:
        assert numbers(vectors.search('rain')) == [1]
    assert told == [aside]


def test_a_graph_that_would_crash_the_process_is_not_loaded(folder: Path) -> None:
    """A kill while the graph is written can leave a file of hundreds of gigabytes: it is neither loaded nor read."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain']))
    os.truncate(_graph(folder, 'link_lists.bin'), 1 << 38)
    told: list[Path] = []

    with opened(folder, on_damage=told.append) as vectors:
        assert vectors.marks() == {}
    assert len(told) == 1


def test_vectors_of_another_model_are_not_used(folder: Path) -> None:
    """Vectors of two models cannot be compared: the folder of another one is set aside."""
    with opened(folder, 'one') as vectors:
        vectors.add(passages(['rain']))
    told: list[Path] = []
    with opened(folder, 'two', on_damage=told.append) as vectors:
        assert vectors.marks() == {}
    assert len(told) == 1


@pytest.mark.parametrize('use', ['add', 'search', 'forget'])
def test_damage_while_it_is_used_is_told_and_mended(folder: Path, use: str) -> None:
    """The call raises, the folder is set aside, an empty one takes its place, and the same call works again."""
    uses: dict[str, Callable[[Vectors], object]] = {
        'add': lambda vectors: vectors.add(passages(['rain'])),
        'search': lambda vectors: vectors.search('rain', desk='main'),
        'forget': lambda vectors: vectors.forget('main', SESSION),
    }
    told: list[Path] = []
    with opened(folder, on_damage=told.append) as vectors:
        vectors.add(passages(['rain', 'gold']))
        with _database(folder).open('r+b') as file:
            file.write(b'\xff' * 100_000)

        with pytest.raises(VectorsDamaged) as raised:
            uses[use](vectors)

        assert told == [raised.value.aside]
        assert vectors.marks() == {}
        uses[use](vectors)
        vectors.add(passages(['rain']))
        assert numbers(vectors.search('rain')) == [1]


def test_a_folder_deleted_while_it_is_used_is_made_anew(folder: Path) -> None:
    """The folder may be deleted at any time: the next use says that all is gone, and the one after works."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain']))
        shutil.rmtree(folder)

        with pytest.raises(VectorsDamaged, match='gone') as raised:
            vectors.search('rain')

        assert raised.value.aside is None
        assert vectors.marks() == {}
        vectors.add(passages(['gold']))
        shutil.rmtree(folder)
        assert vectors.marks() == {}
        vectors.add(passages(['gold']))
        assert numbers(vectors.search('gold')) == [1]


@pytest.mark.parametrize(('code', 'number'), [(13, errno.ENOSPC), (778, errno.EIO), (8, errno.EROFS), (5, errno.EBUSY)])
def test_a_full_or_failing_disk_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, number: int
) -> None:
    """What SQLite says about the disk is raised as such: nothing is set aside, and the mark stays where it was."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain']))
        collection = vectors._folder._collection

        def fail(**_: object) -> None:
            from chromadb.errors import InternalError

            raise InternalError(f'error returned from database: (code: {code}) says SQLite')

        with monkeypatch.context() as patch:
            patch.setattr(collection, 'upsert', fail)
            with pytest.raises(StorageError) as raised:
                vectors.add(passages(['gold'], first=2))

        assert raised.value.errno == number
        assert vectors.marks() == {('main', SESSION): 1}
        assert [path.name for path in folder.parent.iterdir() if 'damaged' in path.name] == []
        vectors.add(passages(['gold'], first=2))
        assert numbers(vectors.search('gold', limit=1)) == [2]


def test_a_mistake_of_ours_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that says nothing about the folder goes through as it is."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain']))
        with monkeypatch.context() as patch:
            patch.setattr(vectors._folder._collection, 'query', lambda **_: {})
            with pytest.raises(KeyError):
                vectors.search('rain')
        assert numbers(vectors.search('rain')) == [1]


def test_dates_are_of_the_session(folder: Path) -> None:
    """The filter goes by the passage's trading date, not by the day it was added."""
    with opened(folder) as vectors:
        vectors.add(passages(['rain']))
        assert numbers(vectors.search('rain', first=DAY, last=DAY)) == [1]
