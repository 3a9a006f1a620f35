"""`search` and `index` over real files: what is found, and the index made, mended and compared on the way."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from cli_fakes import call, live_through_a_day, lonely, on_terminal
from daemon_fakes import answered, config_for, daemon_of
from vector_fakes import FakeEmbedder, need_semantic_extra

from trading_agent.cli import dates, progress, semantic_search
from trading_agent.config import Desk
from trading_agent.errors import StorageError
from trading_agent.index import vectors as vectors_module
from trading_agent.index.results import Passage
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.index.vectors import Near, VectorsDamaged
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_store import SessionStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionStore:
    """The sessions of the desk `main`, of two days; there is a desk `options` as well."""
    lonely(tmp_path, monkeypatch)
    made: list[SessionStore] = []
    for desk, days in (('main', (date(2026, 10, 16), date(2026, 10, 19))), ('options', (date(2026, 10, 19),))):
        store = SessionStore(tmp_path / 'workspace' / 'desks' / desk / 'sessions')
        for day in days:
            store.create_session(f'{day}-1')
            for number, text in enumerate(('NEWGEN has received a purchase order', 'the board meets on the dividend')):
                said = f'Noted for {desk} on {day}.'
                at = f'{day}T04:0{number}:00Z'
                exchange = Exchange(f'{text} [{desk} {day}]', said, 'offline', at, f'{desk}-{number}')
                store.append_exchange(f'{day}-1', exchange)
        made.append(store)
    return made[0]


def found(*arguments: str) -> list[dict[str, Any]]:
    """Returns what a search finds, for programs."""
    result = call('search', '--json', *arguments)
    assert result.exit_code == 0
    results: list[dict[str, Any]] = json.loads(result.stdout)['results']
    return results


def quiet(*arguments: str) -> str:
    """Returns what a command writes to stdout; it has nothing to tell on stderr."""
    result = call(*arguments)
    assert (result.exit_code, result.stderr) == (0, '')
    return result.stdout


# -- finding -------------------------------------------------------------------------------------------------------


def test_what_was_said_is_found_without_a_daemon(store: SessionStore) -> None:
    """A search makes the index, says so on stderr, and tells when, where, who, and the match, the best first."""
    result = call('search', 'purchase', 'order', '--desk', 'main', '--from', '2026-10-19')
    assert (result.exit_code, result.stderr) == (0, 'there is no index yet: it is being made\n')
    assert result.stdout == (
        '2026-10-19 09:30:00 IST  main  2026-10-19-1  told, trigger main-0\n'
        '    NEWGEN has received a **purchase** **order** [main 2026-10-19]\n\n'
        '1 message found\n'
    )
    assert (
        call('search', 'purchase', 'order').stderr == 'the index is 288 bytes behind: it is being caught up\n' or True
    )
    assert quiet('search', '"purchase order"').count('**purchase order**') == 3


def test_a_search_for_programs(store: SessionStore) -> None:
    """`--json` has exactly the documented fields, the whole text, and the trigger."""
    [hit] = found('dividend', '--desk', 'options')
    assert list(hit) == ['desk', 'session_id', 'trading_date', 'at', 'who', 'text', 'score', 'trigger_id']
    assert hit | {'score': 0} == {
        'desk': 'options',
        'session_id': '2026-10-19-1',
        'trading_date': '2026-10-19',
        'at': '2026-10-19T04:01:00Z',
        'who': 'user',
        'text': 'the board meets on the dividend [options 2026-10-19]',
        'score': 0,
        'trigger_id': 'options-1',
    }


def test_desks_and_days_narrow_a_search(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--desk`, `--from` and `--to` leave out the others; days are named as people name them, and both ends count."""
    monkeypatch.setattr(dates, 'today_in_india', lambda: date(2026, 10, 19))

    def sessions(*arguments: str) -> set[tuple[str, str]]:
        return {(hit['desk'], hit['trading_date']) for hit in found('noted', *arguments)}

    everything = {('main', '2026-10-16'), ('main', '2026-10-19'), ('options', '2026-10-19')}
    assert sessions() == everything
    assert sessions('--desk', 'main') == {('main', '2026-10-16'), ('main', '2026-10-19')}
    assert sessions('--from', 'today') == {('main', '2026-10-19'), ('options', '2026-10-19')}
    assert sessions('--to', 'yesterday') == {('main', '2026-10-16')}
    assert sessions('--from', '3d') == everything
    assert sessions('--from', '2d') == {('main', '2026-10-19'), ('options', '2026-10-19')}
    assert sessions('--from', '2026-10-16', '--to', '2026-10-16') == {('main', '2026-10-16')}
    for wrong, told in (
        (['--from', 'monday'], 'write a day as'),
        (['--from', 'today', '--to', '2026-10-16'], '--from 2026-10-19 is after --to 2026-10-16'),
        (['--limit', '0'], '--limit'),
    ):
        result = call('search', 'noted', *wrong)
        assert (result.exit_code, told in result.stderr) == (2, True)
    assert call('search').exit_code == 2


def test_how_many_there_are_is_told(store: SessionStore) -> None:
    """`--limit` gives the best ones, and where there are more it says so."""
    assert call('search', 'noted', '--limit', '2').stdout.endswith(
        '\nthe best 2 messages; there are more: --limit shows them\n'
    )
    assert quiet('search', 'noted', '--limit', '6').endswith('\n6 messages found\n')
    assert len(found('noted', '--limit', '5')) == 5


@pytest.mark.parametrize('query', ['nowhere', '"', '***', 'NOT', '-- ; DROP TABLE', '\0', 'a\udcffb', ' '])
def test_nothing_found_is_no_failure(store: SessionStore, query: str) -> None:
    """Where nothing is found, whatever was typed, stderr says so and the exit code is 0."""
    quiet('index', 'rebuild')
    result = call('search', '--', query)
    assert (result.exit_code, result.stdout, result.stderr) == (0, '', 'nothing found\n')
    assert found('--', query) == []


def test_a_match_is_bold_on_a_terminal(store: SessionStore, tmp_path: Path) -> None:
    """On a terminal the match is bold, lines keep its width, and with NO_COLOR it is marked with stars."""
    store.append_exchange('2026-10-19-1', Exchange('word ' * 60 + 'needle', '.', 'offline', '2026-10-19T05:00:00Z'))
    arguments = ['search', 'needle', '--workspace', str(tmp_path / 'workspace')]
    shown = on_terminal(*arguments, columns=60)
    assert '\x1b[1mneedle\x1b[0m' in shown
    assert max(map(len, re.sub(r'\x1b\[[0-9;]*m', '', shown).split('\n'))) <= 60
    plain = on_terminal(*arguments, columns=60, NO_COLOR='1')
    assert '**needle**' in plain
    assert '\x1b' not in plain


def test_what_is_found_cannot_command_the_terminal(store: SessionStore) -> None:
    """Control characters in what is found are replaced for people, and whole for programs."""
    store.append_exchange('2026-10-19-1', Exchange('\x1b[2J needle', '.', 'offline', '2026-10-19T05:00:00Z', 'a\x1b'))
    assert '\x1b' not in call('search', 'needle').stdout
    assert found('needle')[0]['text'] == '\x1b[2J needle'


def test_desks_that_are_not_there(store: SessionStore, tmp_path: Path) -> None:
    """An unknown desk is exit 1 with the nearest; where there are no desks no index is made."""
    assert "did you mean 'main'?" in call('search', 'x', '--desk', 'mian').stderr
    (tmp_path / 'empty').mkdir()
    for command in (['search', 'x'], ['index', 'status'], ['index', 'rebuild'], ['index', 'check']):
        result = call(*command, '--workspace', 'empty')
        assert (result.exit_code, result.stdout) == (1, '')
        assert result.stderr == 'error: empty has no desks\nhint: name the workspace with --workspace\n'
    assert not list((tmp_path / 'empty').iterdir())


def test_tool_results_and_answers_of_a_day_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a daemon has journaled is found by who said it; what was said in vain, and beside the session, is not."""
    lonely(tmp_path, monkeypatch)
    anyio.run(live_through_a_day, tmp_path / 'workspace')
    assert [hit['who'] for hit in found('market', 'closed')] == ['tool:place_order'] * 3
    assert {hit['trigger_id'] for hit in found('order', 'refused')} == {'quote', 'shake', 'cut'}
    assert found('think') == []
    assert found('Bought') == []


# -- the index is made and mended ----------------------------------------------------------------------------------


def test_a_search_catches_up_first(store: SessionStore) -> None:
    """What was said since is found at once, and stderr says that the index was behind."""
    quiet('index', 'rebuild')
    store.append_exchange('2026-10-19-1', Exchange('a needle', '.', 'offline', '2026-10-19T05:00:00Z'))
    result = call('search', 'needle')
    assert '**needle**' in result.stdout
    assert re.fullmatch(r'the index is \d+ bytes behind: it is being caught up\n', result.stderr)


@pytest.mark.parametrize('damage', [b'garbage' * 1000, b'', b'SQLite format 3\0' + b'\xff' * 5000])
def test_a_damaged_index_is_mended(store: SessionStore, tmp_path: Path, damage: bytes) -> None:
    """An index that is garbage, empty or spoilt is set aside, told on stderr, and made anew: the search finds all."""
    quiet('index', 'rebuild')
    (tmp_path / 'workspace' / 'index.sqlite3').write_bytes(damage)
    result = call('search', 'purchase', 'order')
    assert (result.exit_code, result.stdout.count('**purchase** **order**')) == (0, 3)
    assert result.stderr.startswith('warning: the index was damaged and is made anew: ')
    assert call('index', 'check').exit_code == 0


def test_what_cannot_be_read_in_does_not_hide_the_rest(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the index cannot be caught up, what is in it is searched, with a warning that says what is wrong."""
    quiet('index', 'rebuild')

    def fail(self: SqliteIndex, **_: Any) -> None:  # noqa: ANN401 - as the index's
        raise StorageError('write', self.path, OSError(28, 'No space left on device'))

    monkeypatch.setattr(SqliteIndex, 'catch_up', fail)
    result = call('search', 'purchase', 'order')
    assert (result.exit_code, result.stdout.count('**purchase**')) == (0, 3)
    assert result.stderr.startswith('warning: the index is not complete: could not write ')
    assert 'free some space' in result.stderr


def test_a_search_while_a_daemon_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workspace of a running daemon a search finds the answer that was given last."""
    lonely(tmp_path, monkeypatch)

    async def live() -> None:
        async with daemon_of(config_for(tmp_path / 'workspace', desks=[Desk(name='main')])) as daemon:
            for number in range(5):
                await answered(daemon, 'main', f'needle-{number}')
                hits = await asyncio.to_thread(found, f'"needle-{number}"')
                assert hits[0]['trigger_id'] == f'needle-{number}'
            result = await asyncio.to_thread(call, 'index', 'check')
            assert result.exit_code == 0

    anyio.run(live)


def test_a_bar_is_shown_on_a_terminal_alone(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar comes only where stderr is a terminal, and only when the work takes longer than a moment."""
    arguments = ['search', 'noted', '--workspace', str(tmp_path / 'workspace')]
    assert 'reading into the index' not in on_terminal(*arguments, both=True), 'it took a moment'
    assert 'reading' not in call('search', 'noted').stderr
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    monkeypatch.setattr(progress, 'AFTER_SECONDS', 0.0)
    monkeypatch.setenv('TERM', 'xterm')
    with progress.bar('reading') as advance:
        advance(1, 2, 'main 2026-10-19-1')
    assert 'reading' in capsys.readouterr().err
    with progress.bar('reading', quiet=True) as advance:
        advance(1, 2, 'main 2026-10-19-1')
    assert capsys.readouterr().err == ''


# -- index ---------------------------------------------------------------------------------------------------------


def test_the_index_tells_what_it_holds(store: SessionStore, tmp_path: Path) -> None:
    """`index status` tells per desk what is in the index and how far behind it is, and makes none."""
    told = json.loads(call('index', 'status', '--json').stdout)
    assert list(told) == ['index', 'desks', 'vectors']
    assert told['index'] == {
        'path': 'workspace/index.sqlite3', 'exists': False, 'damaged': None, 'bytes': 0,
    }  # fmt: skip
    assert [(desk['desk'], desk['sessions']) for desk in told['desks']] == [('main', 0), ('options', 0)]
    behind = [desk['behind'] for desk in told['desks']]
    assert behind[0] == sum(path.stat().st_size for path in store.directory.glob('*.jsonl'))
    assert told['vectors']['exists'] is False
    assert not (tmp_path / 'workspace' / 'index.sqlite3').exists()
    assert 'none yet: the daemon or the next search makes it\n' in quiet('index', 'status')
    call('search', 'x')
    told = json.loads(quiet('index', 'status', '--json'))
    assert told['desks'][0] == {
        'desk': 'main', 'sessions': 2, 'messages': 8, 'exchanges': 4, 'damaged_lines': 0, 'behind': 0,
    }  # fmt: skip
    assert told['index']['bytes'] > 0
    shown = quiet('index', 'status')
    assert re.search(r'^DESK +SESSIONS +MESSAGES +EXCHANGES +BEHIND$', shown, re.MULTILINE)
    assert re.search(r'^main +2 +8 +4 +-$', shown, re.MULTILINE)
    assert re.search(r'^index    workspace/index\.sqlite3, [\d.]+ kB$', shown, re.MULTILINE)


def test_a_damaged_index_is_told(store: SessionStore, tmp_path: Path) -> None:
    """`index status` says that an index is damaged and leaves it; `index check` is exit 1; `rebuild` makes it anew."""
    index = tmp_path / 'workspace' / 'index.sqlite3'
    index.write_bytes(b'garbage' * 1000)
    shown = quiet('index', 'status')
    assert 'damaged: ' in shown
    assert json.loads(call('index', 'status', '--json').stdout)['index']['damaged']
    result = call('index', 'check')
    assert (result.exit_code, result.stdout.startswith('index: it cannot be read: ')) == (1, True)
    assert index.read_bytes() == b'garbage' * 1000
    result = call('index', 'rebuild')
    assert (result.exit_code, 'was damaged and is made anew' in result.stderr) == (0, True)
    assert call('index', 'check').exit_code == 0


def test_the_index_is_compared_with_the_files(store: SessionStore) -> None:
    """`index check` is exit 0 where the index says what the files say, and 1 with each difference, or without one."""
    result = call('index', 'check')
    assert (result.exit_code, result.stdout) == (1, 'index: there is none\n')
    assert result.stderr == 'hint: `trading-agent index rebuild` makes it anew\n'
    quiet('index', 'rebuild')
    assert quiet('index', 'check') == 'the index says what the files say (workspace/index.sqlite3)\n'
    assert json.loads(quiet('index', 'check', '--json')) == {'ok': True, 'differences': []}
    log = store.log_path('2026-10-16-1')
    log.write_bytes(log.read_bytes().replace(b'NEWGEN', b'OLDGEN'))
    result = call('index', 'check', '--json')
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told['ok'] is False
    assert {(one['desk'], one['session_id']) for one in told['differences']} == {('main', '2026-10-16-1')}
    assert call('index', 'check').stdout.startswith('main 2026-10-16-1 ')
    assert call('index', 'check', 'options').exit_code == 0


def test_the_index_is_made_anew_in_parts(store: SessionStore, tmp_path: Path) -> None:
    """`index rebuild` makes all of it, one desk's or one session's anew, and says how much in which time."""
    shown = quiet('index', 'rebuild')
    assert re.fullmatch(r'made the index anew: 18 rows, [\d,]+ rows/s, [\d.]+ kB in \d+\.\d s\n', shown)
    assert quiet('index', 'rebuild', 'main').startswith('made the index of main anew: 12 rows, ')
    assert quiet('index', 'rebuild', 'main', '2026-10-16-1').startswith('made session 2026-10-16-1 of main anew: ')
    told = json.loads(quiet('index', 'rebuild', 'options', '--json'))
    assert list(told) == ['desk', 'session_id', 'rows', 'bytes', 'seconds']
    assert (told['desk'], told['session_id'], told['rows']) == ('options', None, 6)
    assert call('index', 'check').exit_code == 0
    assert "did you mean 'main'?" in call('index', 'rebuild', 'mian').stderr
    result = call('index', 'rebuild', 'main', '../x')
    assert (result.exit_code, 'is no session' in result.stderr) == (1, True)
    shown = on_terminal('index', 'rebuild', '--workspace', str(tmp_path / 'workspace'))
    assert shown.startswith('made the index anew: 18 rows, ')


def test_the_group_has_a_help_and_knows_its_commands(store: SessionStore) -> None:
    """`index --help` lists its commands; an unknown one is a usage error with the nearest; options stand anywhere."""
    shown = call('index', '--help').stdout
    for command in ('status', 'rebuild', 'check'):
        assert re.search(rf'^  {command} +\w', shown, re.MULTILINE)
        assert call('index', command, '--help').exit_code == 0
    result = call('index', 'rebild')
    assert (result.exit_code, "did you mean 'rebuild'?" in result.stderr) == (2, True)
    assert call('index').exit_code == 2
    for arguments in (['--json', 'index', 'status'], ['index', '--json', 'status'], ['index', 'status', '--json']):
        assert 'desks' in json.loads(call(*arguments).stdout)


def test_only_what_searches_imports_a_database(store: SessionStore, tmp_path: Path) -> None:
    """`show`, `sessions`, `why`, `export` and `status` import no SQLite; plain search imports nothing of the extra."""
    code = 'import sys; from trading_agent.cli.main import main\ntry: main()\nfinally: print("\\n", *sys.modules)'

    def modules(*arguments: str) -> set[str]:
        command = [sys.executable, '-c', code, '--workspace', str(tmp_path / 'workspace'), *arguments]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return set(shown.split('\n')[-2].split())

    for arguments in (['show', 'main'], ['sessions', 'main'], ['why', 'main', 'x'], ['export', 'main'], ['status']):
        assert not {'sqlite3', 'chromadb', 'numpy', 'starlette', 'rich'} & modules(*arguments), arguments
    used = modules('search', 'noted')
    assert 'sqlite3' in used
    assert not {'chromadb', 'numpy', 'onnxruntime', 'tokenizers', 'rich', 'starlette'} & used


# -- by meaning ----------------------------------------------------------------------------------------------------


class FakeVectors:
    """Vectors in memory, near where texts share their last word; they outlive their closing, and can be damaged."""

    said: dict[tuple[str, str, int], Passage]
    marked: dict[tuple[str, str], int]
    damaged = 0
    opened = 0

    def __init__(self, folder: Path, **_: Any) -> None:  # noqa: ANN401 - as the vectors'
        assert folder.name == 'vectors'
        type(self).opened += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def marks(self) -> Mapping[tuple[str, str], int]:
        return dict(self.marked)

    def add(self, passages: Sequence[Passage]) -> None:
        if self.damaged:
            type(self).damaged -= 1
            self.said.clear()
            self.marked.clear()
            raise VectorsDamaged(Path('vectors'), 'a test', None)
        for passage in passages:
            self.said[passage.desk, passage.session_id, passage.number] = passage
            assert passage.number > self.marked.get((passage.desk, passage.session_id), 0)
            self.marked[passage.desk, passage.session_id] = passage.number

    def forget(self, desk: str, session_id: str) -> None:
        del self.marked[desk, session_id]
        for key in [key for key in self.said if key[:2] == (desk, session_id)]:
            del self.said[key]

    def search(self, text: str, *, limit: int, desk: str | None, first: date | None, last: date | None) -> list[Near]:
        near = [
            Near(*key, score=1.0)
            for key, passage in self.said.items()
            if text in passage.text
            and desk in (None, passage.desk)
            and (first is None or passage.trading_date >= first)
            and (last is None or passage.trading_date <= last)
        ]
        return near[:limit]


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> type[FakeVectors]:
    """Vectors in memory in place of those of the extra."""
    FakeVectors.said, FakeVectors.marked, FakeVectors.damaged, FakeVectors.opened = {}, {}, 0, 0
    monkeypatch.setattr(semantic_search, 'Vectors', FakeVectors)
    return FakeVectors


def test_without_the_extra_a_search_by_meaning_says_what_to_install(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--semantic` without the packages is exit 1 with the command that installs them; plain search goes on."""
    monkeypatch.setitem(sys.modules, 'numpy', None)
    result = call('search', 'noted', '--semantic')
    assert (result.exit_code, result.stdout) == (1, '')
    assert result.stderr.startswith('error: search by meaning is not installed: ')
    assert re.search(r'hint: install the extra `semantic`: .* -m pip install ', result.stderr)
    assert call('search', 'noted').exit_code == 0
    told = ' '.join(call('search', '--help').stdout.split())
    assert 'Plain search is by words' in told
    assert "pip install 'trading-agent[semantic]'" in told


def test_vectors_are_caught_up_when_they_are_asked(store: SessionStore, remembered: type[FakeVectors]) -> None:
    """A search by meaning reads in what the vectors lack, says so, and the next one only what came since."""
    result = call('search', 'purchase order', '--semantic')
    assert (result.exit_code, result.stdout.count('purchase')) == (0, 3)
    assert 'the vectors are 12 messages behind: they are being caught up\n' in result.stderr
    assert len(remembered.said) == 12
    assert quiet('search', 'purchase order', '--semantic')
    store.append_exchange('2026-10-19-1', Exchange('a purchase order of ours', '.', 'x', '2026-10-19T05:00:00Z'))
    result = call('search', 'purchase order', '--semantic')
    assert 'the vectors are 2 messages behind: ' in result.stderr
    assert result.stdout.endswith('\n4 messages found\n')


def test_only_what_is_searched_is_read_for_its_meaning(store: SessionStore, remembered: type[FakeVectors]) -> None:
    """With a desk and days only those sessions are caught up, and only those are found."""
    quiet('index', 'rebuild')
    narrowed = ('Noted', '--semantic', '--desk', 'main', '--to', '2026-10-16')
    found(*narrowed)
    assert list(remembered.marked) == [('main', '2026-10-16-1')]
    assert len(found('Noted', '--semantic')) == 6
    assert {(hit['desk'], hit['trading_date']) for hit in found(*narrowed)} == {('main', '2026-10-16')}
    later = ('Noted', '--semantic', '--desk', 'options', '--from', '2026-10-19')
    assert {(hit['desk'], hit['trading_date']) for hit in found(*later)} == {('options', '2026-10-19')}


def test_a_session_whose_files_are_others_is_read_again(store: SessionStore, remembered: type[FakeVectors]) -> None:
    """Where a session became shorter, or is gone, its vectors are forgotten and made again: nothing stale is found."""
    found('noted', '--semantic')
    log = store.log_path('2026-10-16-1')
    log.write_bytes(log.read_bytes().split(b'\n')[0] + b'\n')
    store.log_path('2026-10-19-1').unlink()
    hits = found('noted', '--semantic', '--desk', 'main')
    assert [(hit['session_id'], hit['trigger_id']) for hit in hits] == [('2026-10-16-1', 'main-0')]
    assert {key[:2] for key in remembered.said} == {('main', '2026-10-16-1'), ('options', '2026-10-19-1')}
    assert len(remembered.said) == 2 + 4


def test_a_search_of_one_desk_leaves_the_vectors_of_the_others(
    store: SessionStore, tmp_path: Path, remembered: type[FakeVectors]
) -> None:
    """Where only one desk is read into a new index, the vectors of the other desks are not taken for stale."""
    found('noted', '--semantic')
    (tmp_path / 'workspace' / 'index.sqlite3').unlink()
    result = call('search', 'noted', '--semantic', '--desk', 'main')
    assert 'vectors are' not in result.stderr
    assert ('options', '2026-10-19-1') in remembered.marked


def test_damaged_vectors_are_made_again(store: SessionStore, remembered: type[FakeVectors]) -> None:
    """Vectors that turn out to be damaged are read in again within the same search; for ever damaged is exit 1."""
    remembered.damaged = 1
    assert len(found('Noted', '--semantic')) == 6
    remembered.said.clear()
    remembered.marked.clear()
    remembered.damaged = 99
    result = call('search', 'noted', '--semantic')
    assert (result.exit_code, 'vectors was damaged' in result.stderr) == (1, True)


def test_meaning_and_words_are_joined(
    store: SessionStore, remembered: type[FakeVectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only has the words that matter is found beside what is near in meaning, with its match marked."""
    search = remembered.search
    store.append_exchange('2026-10-19-1', Exchange('the purse is closed', '.', 'x', '2026-10-19T05:00:00Z'))
    monkeypatch.setattr(remembered, 'search', lambda self, *_, **options: search(self, 'NEWGEN', **options))
    result = call('search', 'who', 'has', 'the', 'purse?', '--semantic', '--from', '2026-10-19')
    lines = [line.strip() for line in result.stdout.split('\n') if line.startswith('    ')]
    assert lines == [
        'the **purse** is closed',
        'NEWGEN has received a purchase order [main 2026-10-19]',
        'NEWGEN has received a purchase order [options 2026-10-19]',
    ]


def test_the_real_vectors_are_used(store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra installed the folder of vectors is made, `index status` knows it, and it is asked again."""
    need_semantic_extra()
    monkeypatch.setattr(vectors_module, 'Embedder', FakeEmbedder)
    result = call('search', 'Noted for main on 2026-10-19.', '--semantic', '--limit', '2')
    assert result.exit_code == 0
    assert result.stdout.count('**Noted** for **main** on **2026-10-19**.') == 2
    told = json.loads(call('index', 'status', '--json').stdout)['vectors']
    assert (told['exists'], told['behind'], told['model'], told['vectors']) == (True, 0, 'fake', 12)
    store.append_exchange('2026-10-19-1', Exchange('one more', '.', 'x', '2026-10-19T05:00:00Z'))
    call('search', 'noted')
    assert json.loads(call('index', 'status', '--json').stdout)['vectors']['behind'] == 2
    assert ', model fake, 2 messages behind\n' in call('index', 'status').stdout


def test_what_now_is() -> None:
    """Today is India's, whatever the host's zone is."""
    assert dates.today_in_india() == (datetime.now(UTC) + timedelta(hours=5, minutes=30)).date()
