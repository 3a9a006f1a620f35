"""How what was found looks."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trading_agent.cli import search_view
from trading_agent.cli.search_view import LINES_SHOWN, as_json, excerpt_lines, print_hits, who
from trading_agent.cli.status_view import cells_of
from trading_agent.index.results import Hit

HIT = Hit(
    desk='main',
    session_id='2026-10-19-1',
    trading_date=date(2026, 10, 19),
    number=7,
    at='2026-10-19T04:00:00Z',
    who='user',
    trigger_id='a-1',
    text='NEWGEN: the order is won.\nAll of it.',
    excerpt='NEWGEN: the order is won. All of it.',
    marks=[(12, 17)],
    score=3.5,
)


def test_a_block_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Each message has the time in India, desk, session and who said it above the excerpt; at the end their number."""
    print_hits([HIT, replace(HIT, at='', trigger_id='', who='tool:quote', marks=[])], more=False)
    assert capsys.readouterr().out == (
        '2026-10-19 09:30:00 IST  main  2026-10-19-1  told, trigger a-1\n'
        '    NEWGEN: the **order** is won. All of it.\n\n'
        '2026-10-19  main  2026-10-19-1  tool quote\n'
        '    NEWGEN: the order is won. All of it.\n\n'
        '2 messages found\n'
    )
    print_hits([HIT], more=True)
    assert capsys.readouterr().out.endswith('\nthe best 1 message; there are more: --limit shows them\n')


def test_a_record_for_programs() -> None:
    """A program gets the whole text and every documented field; the trigger where it is known."""
    told = as_json(HIT)
    assert list(told) == ['desk', 'session_id', 'trading_date', 'at', 'who', 'text', 'score', 'trigger_id']
    assert (told['trading_date'], told['text']) == ('2026-10-19', HIT.text)
    assert 'trigger_id' not in as_json(replace(HIT, trigger_id=''))


def test_who_said_it() -> None:
    """What the desk was told, answered, and was given by a tool are told apart."""
    assert [who(role) for role in ('user', 'assistant', 'tool:a:b', 'odd')] == ['told', 'answered', 'tool a:b', 'odd']


def test_a_match_is_marked_across_lines() -> None:
    """A match of several words that is wrapped is marked in both lines; marks that touch or overlap nest nowhere."""
    assert list(excerpt_lines('one two three four', [(4, 13)], 12)) == ['one **two**', '**three** four']
    assert list(excerpt_lines('one two', [(0, 3), (2, 5)], 40)) == ['**one**** t**wo']
    assert list(excerpt_lines('abc', [(0, 9), (-3, 1)], 40)) == ['**abc**']


def test_a_long_excerpt_ends() -> None:
    """So many lines are shown, and an ellipsis says that there is more."""
    lines = list(excerpt_lines('word ' * 100, [], 20))
    assert len(lines) == LINES_SHOWN
    assert lines[-1].endswith(' …')


def test_on_a_terminal_a_match_is_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that has colours a match is bold, without stars."""
    monkeypatch.setattr(search_view, 'paint', lambda text, **_: f'<b>{text}</b>')
    assert list(excerpt_lines('one two', [(4, 7)], 40)) == ['one <b>two</b>']


@given(
    text=st.text(st.characters(codec='utf-8', exclude_characters='*'), max_size=200),
    width=st.integers(10, 60),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_lines_keep_the_width_and_the_words(text: str, width: int, cuts: list[int]) -> None:
    """Whatever is in an excerpt, no line is wider than asked for, and every mark has its end."""
    ordered = sorted(cut for cut in cuts if cut <= len(text))
    marks = list(zip(ordered[::2], ordered[1::2], strict=False))
    for line in excerpt_lines(text, marks, width):
        assert cells_of(line.replace('**', '')) <= width
        assert line.count('**') % 2 == 0


@given(text=st.text('ab \u3000देवनागरी模', max_size=60))
def test_no_word_is_lost(text: str) -> None:
    """The lines together have every word of a short excerpt, in order."""
    shown = ''.join(''.join(excerpt_lines(text, [], 100)).split())
    assert shown == ''.join(text.split())
