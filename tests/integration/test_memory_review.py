"""What a session leaves behind, on real files: a summary that is checked, and a Memory.md that loses nothing."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from keeper_fakes import MONDAY, Box, Crash, InlineDisk, around, spare_the_disk

from trading_agent.errors import BackendError, DeskUnusable
from trading_agent.events import MemoryRefused, MemoryUpdated, SkillsReviewed, SummaryWritten
from trading_agent.memory.review import Limits
from trading_agent.memory.rollover import RolloverRecord
from trading_agent.memory.summary_check import LEGEND
from trading_agent.routing.turn_runner import Turn

SESSION = '2026-10-19-1'
OLD_MEMORY = ''.join(f'- rule {number}: never hold ABC overnight\n' for number in range(20))


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_the_disk(monkeypatch)


def saying(**fields: object) -> Callable[[Turn], Awaitable[dict[str, Any]]]:
    """Returns a reviewer that says this, and beside it what is always said."""

    async def review(_: Turn) -> dict[str, Any]:
        return {'summary': 'fine', 'memory': '', 'reasons': '', **fields}

    return review


async def a_day(box: Box, *told: str) -> None:
    """Starts a desk, tells it this, and rolls over by hand."""
    await box.start()
    for text in told or ('a message',):
        await box.turn(text)
    await box.keeper.roll_over()


class Asked:
    """A reviewer that remembers how it was asked.

    Attributes:
        turns: Each question.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self.turns: list[Turn] = []
        box.model.on_review = self.review

    async def review(self, turn: Turn) -> dict[str, Any]:
        self.turns.append(turn)
        return await self._box.model.review(turn)


# -- notes -----------------------------------------------------------------------------------------------------


async def test_the_days_notes_are_shown(tmp_path: Path) -> None:
    """What the desk noted down in the session, and in no other, stands in the question about it."""
    box = Box(tmp_path)
    asked = Asked(box)
    box.notes.add(SESSION, 'ABC opens weak\non Mondays', box.clock.now())
    box.notes.add('2026-10-16-1', 'of another day', box.clock.now())
    await a_day(box)
    text = asked.turns[0].text
    assert 'noted down in the course of the session:\n\n- ABC opens weak\n  on Mondays\n' in text
    assert 'of another day' not in text
    assert text.endswith('Memory.md is now:\n\n(empty)\n')


async def test_a_day_without_notes_says_nothing_of_them(tmp_path: Path) -> None:
    """Where nothing was noted down the question does not speak of notes."""
    box = Box(tmp_path)
    asked = Asked(box)
    await a_day(box)
    assert 'noted down' not in asked.turns[0].text


async def test_more_notes_than_fit(tmp_path: Path) -> None:
    """Of too many notes the newest are shown, and how many are not."""
    box = Box(tmp_path, limits=Limits(review_chars=4000))
    asked = Asked(box)
    for number in range(8):
        box.notes.add(SESSION, f'note {number} '.ljust(300, '.'), box.clock.now())
    await a_day(box)
    text = asked.turns[0].text
    assert '(5 earlier ones are left out)' in text
    assert [number for number in range(8) if f'note {number} ' in text] == [5, 6, 7]


async def test_notes_survive_a_day_without_a_model(tmp_path: Path) -> None:
    """They stand in the short summary, and in the question when the full one is made later."""
    box = Box(tmp_path)
    box.model.on_review = saying(summary='')
    box.notes.add(SESSION, 'ABC opens weak', box.clock.now())
    await a_day(box)
    assert ' Noted down, the newest first:\n- ABC opens weak\n' in box.summary(MONDAY)
    asked = Asked(box)
    assert await box.keeper.backfill()
    assert '- ABC opens weak\n' in asked.turns[0].text


async def test_notes_of_a_newer_version_park_the_desk(tmp_path: Path) -> None:
    """A session whose notes this program does not understand is not summed up without them."""
    box = Box(tmp_path)
    (tmp_path / 'notes').mkdir()
    (tmp_path / 'notes' / f'{SESSION}.jsonl').write_text('{"type":"header","version":2}\n')
    with pytest.raises(DeskUnusable):
        await a_day(box)
    assert box.summary(MONDAY) == ''
    assert box.model.reviews == []


# -- too long a day --------------------------------------------------------------------------------------------


def in_parts(tmp_path: Path, **options: Any) -> Box:  # noqa: ANN401 - as Box takes them
    """Returns a desk that sees some 5 exchanges at once."""
    return Box(tmp_path, limits=Limits(review_chars=500), **options)


async def test_a_long_day_is_summed_up_in_parts(tmp_path: Path) -> None:
    """Each part is asked about in order, then all their summaries together, with Memory.md."""
    box = in_parts(tmp_path)
    asked = Asked(box)
    box.memory.path.write_text('- by hand\n')
    await a_day(box, *(f'message {number}' for number in range(12)))
    *parts, last = asked.turns
    assert [len(turn.exchanges) for turn in parts] == [4, 4, 4]
    assert [turn.exchanges[0].trigger_text for turn in parts] == ['message 0', 'message 4', 'message 8']
    assert [turn.text.partition('exchanges ')[2][:10] for turn in parts] == ['1 to 4 of ', '5 to 8 of ', '9 to 12 of']
    assert [exchange.trigger_text for exchange in last.exchanges] == [
        f'Part {number} of 3, exchanges {first} to {first + 3}, summed up:\n\n{SESSION} had 4 exchanges'
        for number, first in ((1, 1), (2, 5), (3, 9))
    ]
    assert 'the summaries of its parts, in order.\n' in last.text
    assert last.text.endswith('- by hand\n\n')
    assert box.memory_text == f'- by hand\n- lesson of {SESSION}\n'
    assert box.told(SummaryWritten)[0].quality == 'full'


async def test_the_summary_of_parts_is_checked_against_the_exchanges(tmp_path: Path) -> None:
    """What a part made up is not proved by standing in that part."""
    box = in_parts(tmp_path)
    box.model.on_review = saying(summary='bought 733 ABC at 15.75')
    await a_day(box, *(f'message {number}' for number in range(11)), 'ABC at 15.75')
    assert box.summary(MONDAY).endswith(f'bought 733 [?] ABC at 15.75\n\n{LEGEND}\n')
    assert box.told(SummaryWritten)[0].unproved == 1


async def test_a_day_that_fits_is_asked_about_once(tmp_path: Path) -> None:
    """A day of the usual length is shown whole."""
    box = Box(tmp_path)
    asked = Asked(box)
    await a_day(box, *(f'message {number}' for number in range(12)))
    assert [len(turn.exchanges) for turn in asked.turns] == [12]


async def test_parts_are_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies after a part goes on with the next one, also when the parts would be cut otherwise now."""
    box = in_parts(tmp_path, disk=InlineDisk())
    asked = Asked(box)
    await box.start()
    for number in range(12):
        await box.turn(f'message {number}')
    saves = 0

    def die(path: Path) -> None:
        nonlocal saves
        saves += path.name == 'rollover.json'
        if saves == 3:
            raise Crash

    with monkeypatch.context() as patch:
        around(patch, 'replace', after=die)
        with pytest.raises(Crash):
            await box.keeper.roll_over()
    record = json.loads((tmp_path / 'sessions' / 'rollover.json').read_text())
    assert [part['exchanges'] for part in record['parts']] == [4, 4]
    assert len(asked.turns) == 2
    box.limits = Limits(review_chars=300)
    await box.restart()
    assert await box.keeper.roll_over_if_due()
    assert [len(turn.exchanges) for turn in asked.turns[2:]] == [2, 2, 4]
    assert 'Part 4 of 4, exchanges 11 to 12' in asked.turns[-1].exchanges[-1].trigger_text


def test_a_record_from_before_there_were_parts_is_read() -> None:
    """What an earlier version wrote to rollover.json is understood."""
    import msgspec

    old = (
        b'{"ended_session_id":"2026-10-19-1","reason":"manual","stage":"summary","review":{"summary":"x",'
        b'"degraded":false,"memory":"","memory_digest":"","backend":null},"exchanges":3,"version":1}'
    )
    record = msgspec.json.decode(old, type=RolloverRecord)
    assert record.parts == ()
    assert record.review is not None
    assert (record.review.unproved, record.review.shortened) == (0, False)


async def test_no_model_in_the_middle_of_a_long_day(tmp_path: Path) -> None:
    """Where the model goes away between two parts the rollover is done at once, and the full summary is owed."""
    box = in_parts(tmp_path)

    async def once(turn: Turn) -> dict[str, Any]:
        if len(box.model.reviews) > 1:
            raise BackendError('gone')
        return await box.model.review(turn)

    box.model.on_review = once
    await a_day(box, *(f'message {number}' for number in range(12)))
    assert box.headings() == [f'## Session {SESSION} (degraded)']
    assert list(box.keeper.owed) == [SESSION]


@pytest.mark.parametrize('at', [1, 2, 3, 4])
async def test_an_owed_summary_of_a_long_day_goes_on_where_it_was_cut_off(tmp_path: Path, at: int) -> None:
    """Cut off at any question by something that is due, it asks for no part again, also after a restart."""
    box = in_parts(tmp_path)
    box.model.on_review = saying(summary='')
    await a_day(box, *(f'message {number}' for number in range(12)))
    asked = Asked(box)
    with anyio.CancelScope() as scope:

        async def cut_off(turn: Turn) -> dict[str, Any]:
            if len(asked.turns) + 1 == at:
                scope.cancel()
                await anyio.sleep_forever()
            return await asked.review(turn)

        box.model.on_review = cut_off
        await box.keeper.backfill()
    assert scope.cancelled_caught
    box.model.on_review = asked.review
    await box.restart()
    assert await box.keeper.backfill()
    assert [len(turn.exchanges) for turn in asked.turns] == [4, 4, 4, 3]
    assert box.headings() == [f'## Session {SESSION}']
    assert not (tmp_path / 'sessions' / 'backfill.json').exists()


@pytest.mark.parametrize(
    'data', [b'{', b'[]', b'{"session_id":"2026-10-18-1","parts":[{"exchanges":4,"summary":"x"}]}']
)
async def test_damaged_progress_costs_asking_again(tmp_path: Path, data: bytes) -> None:
    """Progress that cannot be read, or that is another session's, is not used."""
    box = in_parts(tmp_path)
    box.model.on_review = saying(summary='')
    await a_day(box, *(f'message {number}' for number in range(12)))
    (tmp_path / 'sessions' / 'backfill.json').write_bytes(data)
    asked = Asked(box)
    assert await box.keeper.backfill()
    assert [len(turn.exchanges) for turn in asked.turns] == [4, 4, 4, 3]


async def test_a_fold_on_a_persons_edit_keeps_the_parts(tmp_path: Path) -> None:
    """Made again on what a person wrote, the review of a long day asks for no part again."""
    box = in_parts(tmp_path)
    asked = Asked(box)

    async def interrupted(turn: Turn) -> dict[str, Any]:
        answer = await asked.review(turn)
        if len(asked.turns) == 4:
            box.memory.path.write_text('- theirs\n')
        return answer

    box.model.on_review = interrupted
    await a_day(box, *(f'message {number}' for number in range(12)))
    assert [len(turn.exchanges) for turn in asked.turns] == [4, 4, 4, 3, 3]
    assert box.memory_text == f'- theirs\n- lesson of {SESSION}\n'


# -- the summary is checked ------------------------------------------------------------------------------------


async def test_what_is_not_in_the_day_is_marked_and_counted(tmp_path: Path) -> None:
    """A made-up price and symbol are marked in the file, counted in the event, and carried with their marks."""
    box = Box(tmp_path)
    box.memory.path.write_text('- at most 4 lakh in one symbol\n')
    box.notes.add(SESSION, 'XYZ looks weak', box.clock.now())
    box.model.on_review = saying(summary='Long 300 ABC at 15.75 (at most ₹4,00,000), short WXYZ at 19.25; XYZ weak.')
    await a_day(box, 'bought 300 ABC at 15.75')
    marked = f'Long 300 ABC at 15.75 (at most ₹4,00,000), short WXYZ [?] at 19.25 [?]; XYZ weak.\n\n{LEGEND}'
    assert box.summary(MONDAY) == f'## Session {SESSION}\n\n{marked}\n'
    assert box.told(SummaryWritten)[0].unproved == 2
    assert marked in await box.turn('next')
    box.model.on_review = saying(summary='Short WXYZ at 19.25, long ABC at 15.75.')
    await box.keeper.roll_over()
    assert f'Short WXYZ [?] at 19.25 [?], long ABC at 15.75.\n\n{LEGEND}' in box.summary(MONDAY)


async def test_a_summary_that_is_all_true_has_no_marks(tmp_path: Path) -> None:
    """Nothing is marked, nothing is counted, and no line is added."""
    box = Box(tmp_path)
    await a_day(box, 'bought 300 ABC at 15.75')
    assert box.summary(MONDAY) == f'## Session {SESSION}\n\n{SESSION} had 1 exchanges\n'
    assert box.told(SummaryWritten)[0].unproved == 0


# -- Memory.md -------------------------------------------------------------------------------------------------


async def test_a_memory_over_its_budget_is_asked_for_again(tmp_path: Path) -> None:
    """The model is told how long it was, without the day being shown again, and the shorter text is taken."""
    box = Box(tmp_path, limits=Limits(memory_budget=300))
    asked: list[Turn] = []

    async def long_winded(turn: Turn) -> dict[str, Any]:
        asked.append(turn)
        if len(asked) > 1:
            return {'memory': '- short\n', 'reasons': 'left out the rest'}
        return {'summary': 'fine', 'memory': 'x' * 412, 'reasons': 'much'}

    box.model.on_review = long_winded
    await a_day(box)
    assert len(asked) == 2
    assert 'has 412 characters, and at most 300 are taken' in asked[1].text
    assert 'x' * 412 in asked[1].text
    assert not asked[1].exchanges
    assert box.memory_text == '- short\n'
    assert box.told(MemoryRefused) == []
    assert box.told(MemoryUpdated)[0].length == len('- short\n')
    assert box.memory.changes()[0].why == 'much left out the rest'


@pytest.mark.parametrize('second', [{'memory': 'y' * 301, 'reasons': ''}, {'memory': ' ', 'reasons': ''}, None])
async def test_still_over_its_budget(tmp_path: Path, second: dict[str, Any] | None) -> None:
    """Too long again, or not answered at all, it is refused once, with what was tried kept for a person."""
    box = Box(tmp_path, limits=Limits(memory_budget=300))
    box.memory.path.write_text('- by hand\n')
    calls = 0

    async def long_winded(_: Turn) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            return {'summary': 'fine', 'memory': 'x' * 412, 'reasons': ''}
        if second is None:
            raise BackendError('gone')
        return second

    box.model.on_review = long_winded
    await a_day(box)
    length = 301 if second and second['memory'].strip() else 412
    assert calls == 2
    assert box.memory_text == '- by hand\n'
    assert [event.error for event in box.told(MemoryRefused)] == [f'it has {length} characters, and the budget is 300']
    assert box.told(MemoryRefused)[0].hint.startswith('Memory.md stays as it is; shorten Memory.md by hand, or raise')
    refused = (tmp_path / 'memory_history' / f'{SESSION}.refused.md').read_text()
    assert len(refused) == length + 1
    assert box.told(SummaryWritten)[0].quality == 'full', 'the summary is taken all the same'


async def test_a_memory_that_would_lose_more_than_half_is_refused(tmp_path: Path) -> None:
    """An old text of some length does not shrink to less than half of it."""
    box = Box(tmp_path)
    box.memory.path.write_text(OLD_MEMORY)
    box.model.on_review = saying(memory=OLD_MEMORY[: len(OLD_MEMORY) // 2 - 10])
    await a_day(box)
    assert box.memory_text == OLD_MEMORY
    told = box.told(MemoryRefused)[0]
    assert 'more than half would be lost' in told.error
    assert 'put it into Memory.md by hand' in told.hint
    assert len(box.model.reviews) == 1, 'it is not asked for again'


@pytest.mark.parametrize('old', [OLD_MEMORY[:400], 'x' * 400])
async def test_a_short_memory_may_shrink(tmp_path: Path, old: str) -> None:
    """What has 400 characters or fewer may become anything."""
    box = Box(tmp_path)
    box.memory.path.write_text(old)
    box.model.on_review = saying(memory='- one rule')
    await a_day(box)
    assert box.memory_text == '- one rule\n'


@pytest.mark.parametrize(
    ('new', 'taken'),
    [
        ('- limit 4 lakh <!-- keep -->\n- a lesson\n', True),
        ('# Rules\n\n   - limit 4 lakh <!-- keep -->  \n', True),
        ('- limit 5 lakh <!-- keep -->\n', False),
        ('- limit 4 lakh\n', False),
        ('- a lesson\n', False),
    ],
)
async def test_lines_that_are_to_be_kept(tmp_path: Path, new: str, *, taken: bool) -> None:
    """A line that a person marked stays as it stands, wherever it stands; else the new text is refused."""
    box = Box(tmp_path)
    box.memory.path.write_text('- limit 4 lakh <!-- keep -->\n- another\n')
    box.model.on_review = saying(memory=new)
    await a_day(box)
    assert (box.memory_text == new.strip() + '\n') == taken
    if not taken:
        told = box.told(MemoryRefused)[0]
        assert "'- limit 4 lakh <!-- keep -->'" in told.error
        assert 'take <!-- keep --> off the line' in told.hint
        assert (tmp_path / 'memory_history' / f'{SESSION}.refused.md').read_text() == new.strip() + '\n'


async def test_a_person_who_edits_meanwhile_is_folded_upon_before_anything_is_refused(tmp_path: Path) -> None:
    """A new text that would be refused is made again on a person's edit first, and judged by that."""
    box = Box(tmp_path)
    box.memory.path.write_text('- limit 4 lakh <!-- keep -->\n')

    async def interrupted(turn: Turn) -> dict[str, Any]:
        if len(box.model.reviews) == 1:
            box.memory.path.write_text('- limit 4 lakh\n')
            return {'summary': 'fine', 'memory': '- forgetful', 'reasons': ''}
        return await box.model.review(turn)

    box.model.on_review = interrupted
    await a_day(box)
    assert box.memory_text == f'- limit 4 lakh\n- lesson of {SESSION}\n'
    assert box.told(MemoryRefused) == []


async def test_a_memory_over_its_budget_that_stays_the_same(tmp_path: Path) -> None:
    """A text that a person made longer than the budget, and that the fold leaves as it is, is no refusal."""
    box = Box(tmp_path, limits=Limits(memory_budget=300))
    box.memory.path.write_text(OLD_MEMORY)
    box.model.on_review = saying(memory=OLD_MEMORY)
    await a_day(box)
    assert box.memory_text == OLD_MEMORY
    assert box.told(MemoryRefused) == []
    assert len(box.model.reviews) == 1


async def test_the_question_says_what_is_kept(tmp_path: Path) -> None:
    """The model is told of the mark, and that half a text is not taken."""
    box = Box(tmp_path)
    asked = Asked(box)
    await a_day(box)
    assert '<!-- keep -->' in asked.turns[0].text
    assert 'more than half' in asked.turns[0].text


# -- the curator's turn ----------------------------------------------------------------------------------------


async def test_a_day_without_a_model_asks_no_curator(tmp_path: Path) -> None:
    """Where no model could be asked for the summary, the rollover does not wait for one to look at the skills."""
    box = Box(tmp_path, curator=lambda _: _Curator())
    box.model.on_review = saying(summary='')
    await a_day(box)
    assert box.told(SkillsReviewed) == []


class _Curator:
    async def review(self, trading_date: object) -> None:
        raise AssertionError
