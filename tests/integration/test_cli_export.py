"""`export`: documents that hold whatever was said, and nothing that was said breaks out of its place in them."""

import json
import re
import shutil
import stat
from collections.abc import Iterator
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import anyio
import pytest
from cli_fakes import call, live_through_a_day, lonely
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from trading_agent.cli.export_html import html
from trading_agent.cli.export_markdown import markdown
from trading_agent.cli.exported_session import ExportedSession, fit
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import SessionState
from trading_agent.memory.session_store import SessionStore

SESSION = '2026-10-19-1'
HOSTILE = [
    '<script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '</div></article></body></html>',
    '<!-- never closed',
    ']]></style><style>*{display:none}',
    '&lt;b&gt; &amp;amp; &#x202e;',
    'NUL\0 and \x1b[2J and \x85',
    'price \u202e54321\u202c is not \u2066what\u2069 it looks like',
    'not a character: \ufdd0\uffff\U0010ffff',
    'a lone \ud800',
    '```\ncode\n```\n````\nmore\n~~~',
    '# heading\n## Session 2026-10-19-9\n---\nsetext\n===\n',
    '> quote\n- list\n1. one\n| a | b |\n|---|---|\n[x]: http://example.com',
    '    indented\n\ttab  \nlast line with spaces   ',
    '\n\n  \nleading newlines',
    '',
    '₹ नमस्ते اردو\u200f 模型 🙂',
]
"""Texts that try to break out of a document, or to look like something else."""

VOID = {'meta', 'br', 'hr', 'img', 'link', 'input'}


class Reader(HTMLParser):
    """Reads HTML strictly: every tag that is opened is closed, in order; only what was meant to be there is there."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: list[tuple[str, str]] = []
        self._block: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f'an attribute twice: {attrs}'
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == 'div':
            self._block = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f'<{tag}/> {attrs}')

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == 'div':
            assert self._block is not None
            self.blocks.append((str(self.tags[-1][1]['class']), ''.join(self._block)))
            self._block = None

    def handle_data(self, data: str) -> None:
        if self._block is not None:
            self._block.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f'a comment: {data}')

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f'a declaration: {data}')


def read_html(document: str) -> Reader:
    """Returns what a browser would find in a document, which is whole."""
    reader = Reader()
    reader.feed(document)
    reader.close()
    assert reader.open == []
    ids = [attributes['id'] for _, attributes in reader.tags if 'id' in attributes]
    assert len(set(ids)) == len(ids)
    links = [attributes['href'] for tag, attributes in reader.tags if tag == 'a']
    assert {str(link) for link in links} <= {f'#{name}' for name in ids}, 'a link that leads nowhere, or out'
    return reader


def exchanged(told: str, answer: str) -> ExportedSession:
    """Returns a session of one exchange, in which the same texts stand in every place that can hold a text."""
    exchange = Exchange(told, answer, answer, '2026-10-19T04:00:00Z', told, '2026-10-19T03:59:58Z', {'input_tokens': 5})
    return ExportedSession(SESSION, [exchange], {'input_tokens': 5}, answer.strip(), degraded=True)


# -- what was said stays in its place ------------------------------------------------------------------------------

ANY_TEXT = st.one_of(st.text(), st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=3).map('\n'.join))


@given(told=ANY_TEXT, answer=ANY_TEXT)
def test_no_text_breaks_out_of_html(told: str, answer: str) -> None:
    """Whatever was said, the document has the same elements, all closed, and its blocks hold exactly what was said."""
    reader = read_html(''.join(html('main', [SESSION], [exchanged(told, answer)])))
    said = [('told', fit(told)), ('said', fit(answer))]
    assert reader.blocks == said + ([('said', fit(answer.strip()))] if answer.strip() else [])
    kinds = {tag for tag, _ in reader.tags}
    assert kinds <= {
        'html', 'head', 'meta', 'title', 'style', 'body', 'header', 'h1', 'main', 'section', 'h2', 'p', 'article', 'h3',
        'a', 'time', 'span', 'strong', 'div',
    }  # fmt: skip
    for _, attributes in reader.tags:
        assert set(attributes) <= {
            'lang', 'charset', 'name', 'content', 'http-equiv', 'id', 'class', 'href', 'datetime', 'dir',
        }  # fmt: skip


@given(told=ANY_TEXT, answer=ANY_TEXT)
def test_no_text_breaks_out_of_markdown(told: str, answer: str) -> None:
    """Whatever was said, the document has only its own headings, no HTML, and its fences hold exactly what was said."""
    document = ''.join(markdown('main', [exchanged(told, answer)]))
    tokens = MarkdownIt('commonmark').enable('table').parse(document)
    assert {token.type for token in tokens} <= {
        'heading_open', 'inline', 'heading_close', 'paragraph_open', 'paragraph_close', 'fence',
    }  # fmt: skip
    headings = [tokens[at + 1] for at, token in enumerate(tokens) if token.type == 'heading_open']
    own = ['Desk main', f'Session {SESSION}']
    assert [heading.content for heading in headings[:2]] == own
    assert len(headings) == 3 + bool(answer.strip())
    inlines = [child.type for token in tokens if token.type == 'inline' for child in token.children or []]
    assert set(inlines) <= {'text', 'text_special'}
    fences = [token.content for token in tokens if token.type == 'fence']
    said = [fit(told), fit(answer), *([fit(answer.strip())] if answer.strip() else [])]
    assert fences == [text + '\n' for text in said]


@pytest.mark.parametrize('text', HOSTILE)
def test_what_cannot_be_seen_is_made_visible(text: str) -> None:
    """A document has no control characters, no marks that turn the direction of text, and nothing but characters."""
    for document in (html('main', [SESSION], [exchanged(text, text)]), markdown('main', [exchanged(text, text)])):
        written = ''.join(document)
        assert not re.search('[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0\uffff\ud800]', written)
        written.encode()
    assert fit('a\u202eb') == 'a⟦U+202E⟧b'
    assert fit('اردو\u200f') == 'اردو\u200f', 'a mark that a script needs stays'


# -- the documents -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionStore:
    """The sessions of the desk `main`: a short one with a summary, and the current one, which is long."""
    lonely(tmp_path, monkeypatch)
    store = SessionStore(tmp_path / 'workspace' / 'desks' / 'main' / 'sessions', lambda: date(2026, 10, 19))
    store.create_session('2026-10-16-1')
    store.append_exchange(
        '2026-10-16-1',
        Exchange('NIFTY?', 'It is\n25,000.', 'claude', '2026-10-16T04:00:01.500Z', 'a-1', '2026-10-16T04:00:00.000Z',
                 {'input_tokens': 1200, 'output_tokens': 30}),
    )  # fmt: skip
    store.write_summary_section('2026-10-16-1', '**Held** all day.', degraded=True)
    store.create_session(SESSION)
    for number in range(24):
        finished = f'2026-10-{19 + (number > 22)}T{4 + number // 6:02}:{number % 6}0:00Z'
        store.append_exchange(SESSION, Exchange(f'question {number}', f'answer {number}', 'claude', finished))
    store.save_state(SessionState(SESSION, date(2026, 10, 19)))
    return store


def test_markdown_of_a_session(store: SessionStore) -> None:
    """Markdown has the session with times in India, who answered, in what time, with which tokens, and the summary."""
    result = call('export', 'main', '2026-10-16-1')
    assert (result.exit_code, result.stderr) == (0, '')
    assert result.stdout == (
        '# Desk main\n'
        '\n## Session 2026-10-16-1\n\n1 exchange, 09:30:01 to 09:30:01 IST, 1,200 tokens in, 30 out\n'
        '\n### 09:30:01 IST, trigger a-1\n\n```text\nNIFTY?\n```\n'
        '\nAnswered by claude (in 1.5s, 1,200 tokens in, 30 out):\n\n```text\nIt is\n25,000.\n```\n'
        '\n### Summary of session 2026-10-16-1 (degraded: a full one is owed)\n\n```text\n**Held** all day.\n```\n'
    )


def test_html_of_a_session(store: SessionStore) -> None:
    """HTML says the same, is one file that fetches nothing, and is made for phones, for the night and for paper."""
    document = call('export', 'main', '2026-10-16-1', '--format', 'html').stdout
    assert document.startswith('<!doctype html>\n<html lang="en">\n')
    reader = read_html(document)
    assert reader.blocks == [('told', 'NIFTY?'), ('said', 'It is\n25,000.'), ('said', '**Held** all day.')]
    assert '1 exchange, 09:30:01 to 09:30:01 IST, 1,200 tokens in, 30 out</p>' in document
    assert '>09:30:01 IST</time></a>, <span>claude</span>, <span>in 1.5s</span>' in document
    assert not re.search(r'https?:|url\(|@import|<script|<link|<img|src=', document)
    assert 'content="default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;"' in document
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in document
    for rule in ('prefers-color-scheme: dark', '@media print', 'break-inside: avoid', 'overflow-wrap: anywhere'):
        assert rule in document
    assert [attributes['datetime'] for tag, attributes in reader.tags if tag == 'time'] == [
        '2026-10-16T04:00:01.500+00:00'
    ]


def test_a_long_session_has_a_table_of_contents(store: SessionStore) -> None:
    """A session of a dozen exchanges and more has a table of its hours in India, each leading to its first exchange."""
    document = call('export', 'main', '--format', 'html').stdout
    read_html(document)
    contents = document.partition('<nav aria-label="Hours">')[2].partition('</nav>')[0]
    assert re.findall(r'<a href="#(.*?)">(.*?)</a>', contents) == [
        (f'{SESSION}-1', '09:00 (3)'),
        (f'{SESSION}-4', '10:00 (6)'),
        (f'{SESSION}-10', '11:00 (6)'),
        (f'{SESSION}-16', '12:00 (6)'),
        (f'{SESSION}-22', '13:00 (3)'),
    ]
    assert '<article id="2026-10-19-1-10">\n<h3><a href="#2026-10-19-1-10"><time' in document
    assert '>2026-10-20 13:20:00 IST</time>' in document, 'a time of another day has its date'
    assert '<nav' not in call('export', 'main', '2026-10-16-1', '--format', 'html').stdout


def test_all_sessions_in_one_document(store: SessionStore) -> None:
    """`--all` has every session, the oldest first, under a table of them; a SESSION beside it is a usage error."""
    document = call('export', 'main', '--all', '--format', 'html').stdout
    reader = read_html(document)
    sections = [attributes['id'] for tag, attributes in reader.tags if tag == 'section']
    assert sections == ['2026-10-16-1', SESSION]
    contents = document.partition('<nav aria-label="Sessions">')[2].partition('</nav>')[0]
    assert re.findall(r'href="#(.*?)"', contents) == sections
    assert len(reader.blocks) == 2 * 25 + 1
    written = call('export', 'main', '--all').stdout
    assert re.findall(r'^## Session (.*)$', written, re.MULTILINE) == sections
    result = call('export', 'main', SESSION, '--all')
    assert (result.exit_code, 'name a SESSION, or say --all' in result.stderr) == (2, True)


def test_a_summary_of_the_first_version_is_of_the_whole_day(store: SessionStore) -> None:
    """A day's summary without sections stands at the end of its session; another session's does not."""
    store.write_summary(date(2026, 10, 16), 'Sold everything.')
    assert call('export', 'main', '2026-10-16-1').stdout.endswith('```text\nSold everything.\n```\n')
    store.write_summary_section('2026-10-16-2', 'Bought.')
    assert 'Bought' not in call('export', 'main', '2026-10-16-1').stdout


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_and_never_by_mistake(store: SessionStore, tmp_path: Path) -> None:
    """`--output` writes what stdout gets, for its owner alone; a file that is there is replaced with --force."""
    expected = call('export', 'main').stdout
    result = call('export', 'main', '--output', 'day.md')
    assert (result.exit_code, result.stdout) == (0, 'wrote day.md: 1 session, 24 exchanges\n')
    file = tmp_path / 'day.md'
    assert file.read_text() == expected
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text('mine')
    result = call('export', 'main', '--output', 'day.md')
    assert (result.exit_code, result.stdout, file.read_text()) == (1, '', 'mine')
    assert result.stderr == (
        'error: day.md is there already, and is left as it is\nhint: --force replaces it; or name another file\n'
    )
    assert call('export', 'main', '--output', 'day.md', '--force').exit_code == 0
    assert file.read_text() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ['day.md', 'workspace']


@pytest.mark.parametrize('force', [[], ['--force']])
def test_a_place_that_cannot_be_written_to_is_told(store: SessionStore, tmp_path: Path, force: list[str]) -> None:
    """A folder that is missing, or stands where the file should, is exit 1 with the path, and leaves nothing behind."""
    (tmp_path / 'folder').mkdir()
    for output in ('missing/day.md', 'folder'):
        result = call('export', 'main', '--output', output, *force)
        assert (result.exit_code, result.stdout) == (1, '')
        assert output in result.stderr
    assert not list((tmp_path / 'folder').iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ['folder', 'workspace']


def test_export_for_programs(store: SessionStore) -> None:
    """`--json` has the document, or where it was written to; `-` is stdout."""
    told = json.loads(call('export', 'main', '--json').stdout)
    assert list(told) == ['desk', 'format', 'sessions', 'exchanges', 'output', 'document']
    assert (told['format'], told['sessions'], told['exchanges'], told['output']) == ('md', [SESSION], 24, None)
    assert told['document'] == call('export', 'main', '--output', '-').stdout
    told = json.loads(call('export', 'main', '--all', '--format', 'html', '--output', 'day.html', '--json').stdout)
    assert (told['sessions'], told['output'], told['document']) == (['2026-10-16-1', SESSION], 'day.html', None)


def test_the_document_is_utf_8_whatever_the_terminal_speaks(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stdout, too, the document is in UTF-8, as it says of itself."""
    store.append_exchange(SESSION, Exchange('₹', 'नमस्ते', 'claude', '2026-10-19T10:00:00Z'))
    monkeypatch.setenv('PYTHONIOENCODING', 'latin-1')
    assert '₹'.encode() in call('export', 'main', '--format', 'html').stdout_bytes


def test_a_desk_or_a_session_that_is_not_there(store: SessionStore, tmp_path: Path) -> None:
    """An unknown desk or session, and a desk without sessions, are exit 1 with what there is."""
    assert "did you mean 'main'?" in call('export', 'mian').stderr
    result = call('export', 'main', '2026-10-18-1')
    assert (result.exit_code, SESSION in result.stderr) == (1, True)
    (tmp_path / 'workspace' / 'desks' / 'new').mkdir()
    for arguments in ([], ['--all']):
        result = call('export', 'new', *arguments)
        assert (result.exit_code, result.stderr) == (1, 'error: new has had no session yet\n')


@pytest.fixture(scope='module')
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace that a daemon has worked in."""
    folder = tmp_path_factory.mktemp('lived') / 'workspace'
    anyio.run(live_through_a_day, folder)
    yield folder
    shutil.rmtree(folder)


def test_what_a_daemon_wrote_is_exported(lived: Path) -> None:
    """A day that a daemon has lived through has its tokens, its answers and the summary of its rollover."""
    document = call('export', 'main', '2026-03-10-1', '--workspace', str(lived)).stdout
    assert '1,467 tokens in, 190 out, 3,000 from a cache\n' in document
    assert 'Answered by gpt (in 0ms, 120 tokens in, 30 out, 1,000 from a cache):\n' in document
    assert document.endswith('### Summary of session 2026-03-10-1\n\n```text\nBought ABC.\n```\n')
