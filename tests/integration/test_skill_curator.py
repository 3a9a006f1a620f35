"""A desk's skills: proposed by a model, approved by a person or made at once, whole after any crash, reversible."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from keeper_fakes import MONDAY, Box, Crash, InlineDisk, around, spare_the_disk

from trading_agent import files
from trading_agent.errors import BackendError, DeskUnusable, TradingAgentError
from trading_agent.events import SkillsReviewed, SummaryWritten
from trading_agent.memory.review import Limits
from trading_agent.memory.skill_curator import MOST_WAITING, SkillCurator
from trading_agent.memory.skill_folder import (
    FaultySkill,
    Skill,
    SkillRefused,
    digest_of,
    read_skill,
    scan,
    skill_list,
    skill_text,
)
from trading_agent.memory.skill_ledger import Mode, Proposal, SkillChange, proposal_id
from trading_agent.memory.skill_store import SkillStore, StaleChange
from trading_agent.providers.offline_fields import filled
from trading_agent.routing.turn_runner import Turn

NOW = datetime(2026, 10, 19, 18, 30, tzinfo=UTC)
SIZING = skill_text('sizing', 'How much to buy', 'Never more than 4 lakh.')
REVISED = skill_text('sizing', 'How much to buy', 'Never more than 5 lakh.')


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_the_disk(monkeypatch)


def action(what: str = 'create', name: str = 'sizing', body: str = 'Never more than 4 lakh.') -> dict[str, str]:
    """Returns what a model asks for."""
    description = '' if what == 'archive' else 'How much to buy'
    return {'action': what, 'name': name, 'description': description, 'body': body, 'reason': f'to {what} it'}


def desk(tmp_path: Path, *actions: dict[str, str], mode: Mode = 'propose', **options: Any) -> Box:  # noqa: ANN401
    """Returns a desk whose model asks for this after each day."""

    def curator(box: Box) -> SkillCurator:
        return SkillCurator(
            'main', box.folder, box.router, box.store, mode=mode, limits=box.limits, disk=box.disk, now=box.clock.now
        )

    box = Box(tmp_path, curator=curator, **options)

    async def curate(_: Turn) -> list[dict[str, str]]:
        return list(actions)

    box.model.on_curation = curate
    return box


async def a_day(box: Box) -> None:
    """Lets a day pass with one message."""
    if box.router.session_id is None:
        await box.start()
    await box.turn('what a day')
    box.next_day()
    await box.keeper.roll_over_if_due()


def told(box: Box) -> tuple[str, int, int, int]:
    """Returns what was told of the last review of the skills."""
    event = box.told(SkillsReviewed)[-1]
    return event.outcome, event.proposed, event.applied, event.refused


def put(tmp_path: Path, data: bytes = SIZING, name: str = 'sizing') -> Path:
    """Puts a skill into the desk's folder as a person does."""
    path = tmp_path / 'skills' / name / 'SKILL.md'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def propose(store: SkillStore, what: SkillChange, text: bytes, base: bytes | None) -> str:
    """Proposes a change to `sizing` and returns its id."""
    before = '' if base is None else digest_of(base)
    change_id = proposal_id(MONDAY, what, 'sizing', before, digest_of(text) if text else '')
    proposal = Proposal(change_id, '2026-10-19T18:30:00Z', what, 'sizing', text.decode(), before, 'because')
    assert store.propose(proposal, 'curator')
    return change_id


def tree(folder: Path) -> dict[Path, bytes]:
    """Returns every file under a folder with its content."""
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def store_of(tmp_path: Path) -> SkillStore:
    """Returns the skills of a desk."""
    return SkillStore(tmp_path, lambda: NOW)


# -- the curator -----------------------------------------------------------------------------------------------


async def test_nothing_to_do_is_the_normal_answer(tmp_path: Path) -> None:
    """A day that taught nothing leaves no file, and is told as looked at."""
    box = desk(tmp_path)
    await a_day(box)
    assert told(box) == ('done', 0, 0, 0)
    assert not (tmp_path / 'skills').exists()
    assert 'The skills are now:\n\n(none)' in box.model.curations[0]


async def test_a_skill_is_proposed(tmp_path: Path) -> None:
    """What a model asks for waits for a person, with its text, its reason and a line in the ledger; nothing else."""
    box = desk(tmp_path, action())
    await a_day(box)
    assert told(box) == ('done', 1, 0, 0)
    assert skill_list(tmp_path) == []
    waiting = store_of(tmp_path).proposals()
    assert [(each.action, each.name, each.reason, each.base) for each in waiting] == [
        ('create', 'sizing', 'to create it', '')
    ]
    assert waiting[0].text.encode() == SIZING
    assert waiting[0].id.startswith('2026-10-19-')
    records = store_of(tmp_path).records()
    assert [(each.kind, each.id, each.by, each.before, each.after) for each in records] == [
        ('proposed', waiting[0].id, 'curator', '', digest_of(SIZING))
    ]


async def test_a_skill_is_made_at_once(tmp_path: Path) -> None:
    """With `apply` what a model asks for is done, and can be reverted like what a person approved."""
    box = desk(tmp_path, action(), mode='apply')
    await a_day(box)
    assert told(box) == ('done', 0, 1, 0)
    assert skill_list(tmp_path) == [Skill('sizing', 'How much to buy', digest_of(SIZING))]
    store = store_of(tmp_path)
    assert store.proposals() == []
    assert [(each.kind, each.by) for each in store.records()] == [('proposed', 'curator'), ('applied', 'curator')]
    store.revert(store.records()[-1].id, 'anil')
    assert skill_list(tmp_path) == []
    await a_day(box)
    assert skill_list(tmp_path) == [], 'what a person took back is not done again'
    assert told(box) == ('done', 0, 0, 0)


async def test_what_the_model_is_shown(tmp_path: Path) -> None:
    """The day's exchanges, the skills with their texts, what waits, and what was turned down with its reason."""
    put(tmp_path)
    box = desk(tmp_path, action('create', 'gaps'), action('create', 'exits'))
    shown: list[Turn] = []

    async def curate(turn: Turn) -> list[dict[str, str]]:
        shown.append(turn)
        return [action('create', 'gaps'), action('create', 'exits')]

    box.model.on_curation = curate
    await a_day(box)
    store = store_of(tmp_path)
    unwanted = next(each for each in store.proposals() if each.name == 'exits')
    store.reject(unwanted.id, 'anil', 'we have a desk for that')
    await a_day(box)
    assert [exchange.answer for exchange in shown[0].exchanges] == ['answer 1 of 2026-10-19-1']
    assert 'Never more than 4 lakh.' in shown[0].text
    assert 'wait for a person' not in shown[0].text
    assert 'wait for a person; do not ask for them again:\n\n- create gaps: to create it\n' in shown[1].text
    assert 'turned down:\n\n- create exits: we have a desk for that\n' in shown[1].text
    assert len(store.proposals()) == 1, 'neither is proposed again'


async def test_a_long_day_is_shown_by_its_end_and_its_summary(tmp_path: Path) -> None:
    """Of a day that is too long the newest exchanges are shown, beside the summary that was just made."""
    box = desk(tmp_path, limits=Limits(review_chars=300))
    shown: list[Turn] = []

    async def curate(turn: Turn) -> list[dict[str, str]]:
        shown.append(turn)
        return []

    box.model.on_curation = curate
    await box.start()
    for number in range(8):
        await box.turn(f'message {number}')
    await a_day(box)
    assert [exchange.trigger_text for exchange in shown[0].exchanges] == ['message 6', 'message 7', 'what a day']
    assert 'Only the end of the day was shown. Its summary:\n\n2026-10-19-1 had ' in shown[0].text


async def test_skills_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """Of more skills than fit into the question the rest are told by their descriptions."""
    for name in ('a', 'b'):
        put(tmp_path, skill_text(name, f'what {name} does', 'x' * 200), name)
    box = desk(tmp_path, limits=Limits(review_chars=1400))
    await a_day(box)
    assert 'x' * 200 in box.model.curations[0]
    assert 'b: what b does (the text is left out)' in box.model.curations[0]


@pytest.mark.parametrize(
    'bad',
    [
        action(name='../x'),
        action(name=''),
        action(name='x' * 65),
        action(name='Sizing'),
        action(name='.archive'),
        action(body=' '),
        action(body='x' * 65_536),
        {**action(), 'description': ' '},
        {**action(), 'description': 'x' * 1025},
        action('revise', 'nowhere'),
        action('archive', 'nowhere'),
        action('create', 'there'),
        action('revise', 'there', 'As it is.'),
    ],
)
async def test_what_cannot_be_done_is_refused(tmp_path: Path, bad: dict[str, str]) -> None:
    """A name that is none, a text that is missing, too long or no news, a skill that is there or not: not proposed."""
    put(tmp_path, skill_text('there', 'How much to buy', 'As it is.'), 'there')
    before = tree(tmp_path)
    box = desk(tmp_path, bad, action('archive', 'there'))
    await a_day(box)
    assert told(box) == ('done', 1, 0, 1)
    assert [each.name for each in store_of(tmp_path).proposals()] == ['there']
    assert before.items() <= tree(tmp_path).items()


async def test_a_few_a_day(tmp_path: Path) -> None:
    """Of many changes three are proposed, and when many wait for a person no model is asked for more."""
    box = desk(tmp_path, *(action(name=f'skill-{number}') for number in range(9)))
    await a_day(box)
    assert told(box) == ('done', 3, 0, 0)
    store = store_of(tmp_path)
    for number in range(MOST_WAITING):
        text = skill_text(f's{number}', 'x', 'y')
        store.propose(
            Proposal(
                proposal_id(MONDAY, 'create', f's{number}', '', digest_of(text)), 'x', 'create', f's{number}',
                text.decode(), '', '',
            ),
            'x',
        )  # fmt: skip
    await a_day(box)
    assert told(box) == ('done', 0, 0, 0)
    assert len(box.model.curations) == 1


async def test_a_curator_without_a_model_blocks_nothing(tmp_path: Path) -> None:
    """No model for the skills is told, and the rollover is done."""
    box = desk(tmp_path)

    async def broken(_: Turn) -> list[dict[str, str]]:
        raise BackendError('gone')

    box.model.on_curation = broken
    await a_day(box)
    assert told(box) == ('failed', 0, 0, 0)
    assert box.told(SummaryWritten)[0].quality == 'full'
    assert box.router.session_id == '2026-10-20-1'


async def test_a_ledger_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """Skills that a newer program wrote are not touched; the rollover is done all the same."""
    (tmp_path / 'skills').mkdir()
    (tmp_path / 'skills' / 'ledger.jsonl').write_text('{"type":"header","version":2}\n')
    box = desk(tmp_path, action())
    await a_day(box)
    assert box.told(SkillsReviewed)[0].error_type == 'DeskUnusable'
    assert [path.name for path in (tmp_path / 'skills').iterdir()] == ['ledger.jsonl']
    with pytest.raises(DeskUnusable):
        store_of(tmp_path).records()


def test_the_offline_backend_asks_for_nothing() -> None:
    """What is filled in without a model is an empty list."""
    from trading_agent.memory import skill_request

    assert filled(skill_request.schema(), [], '', MONDAY) == {'actions': []}


# -- a person's hand -------------------------------------------------------------------------------------------


def test_approve_revise_archive_and_take_it_all_back(tmp_path: Path) -> None:
    """Each change puts the old text away under its id, and reverting them one after the other ends where it began."""
    store = store_of(tmp_path)
    create = propose(store, 'create', SIZING, None)
    assert store.approve(create, 'anil').name == 'sizing'
    (tmp_path / 'skills' / 'sizing' / 'table.csv').write_text('1,2\n')
    revise = propose(store, 'revise', REVISED, SIZING)
    store.approve(revise, 'anil')
    assert read_skill(tmp_path, 'sizing').encode() == REVISED
    archive = propose(store, 'archive', b'', REVISED)
    store.approve(archive, 'anil')
    assert skill_list(tmp_path) == []
    archived = tmp_path / 'skills' / '.archive' / 'sizing'
    assert (archived / revise / 'SKILL.md').read_bytes() == SIZING
    assert (archived / archive / 'SKILL.md').read_bytes() == REVISED
    assert (archived / archive / 'table.csv').read_text() == '1,2\n', 'with all that was beside it'

    assert store.revert(archive, 'uma').id == f'{archive}.r1'
    assert read_skill(tmp_path, 'sizing').encode() == REVISED
    assert (tmp_path / 'skills' / 'sizing' / 'table.csv').exists()
    store.revert(revise, 'uma')
    assert read_skill(tmp_path, 'sizing').encode() == SIZING
    store.revert(create, 'uma')
    assert skill_list(tmp_path) == []
    assert [(each.kind, each.by) for each in store.records()] == [
        *[('proposed', 'curator'), ('applied', 'anil')] * 3,
        *[('reverted', 'uma')] * 3,
    ]
    digests = [(each.before, each.after) for each in store.records() if each.kind in ('applied', 'reverted')]
    assert digests[3:] == [(after, before) for before, after in digests[2::-1]]

    store.revert(f'{create}.r1', 'uma')
    assert read_skill(tmp_path, 'sizing').encode() == SIZING, 'what was taken back can be taken back'
    store.revert(f'{revise}.r1', 'uma')
    assert read_skill(tmp_path, 'sizing').encode() == REVISED
    store.revert(revise, 'uma')
    assert store.records()[-1].id == f'{revise}.r2'


def test_what_was_decided_is_not_decided_again(tmp_path: Path) -> None:
    """A proposal that was approved or rejected is told as such, and its file is kept."""
    store = store_of(tmp_path)
    create = propose(store, 'create', SIZING, None)
    store.approve(create, 'anil')
    with pytest.raises(SkillRefused, match='was applied before, by anil'):
        store.approve(create, 'anil')
    revise = propose(store, 'revise', REVISED, SIZING)
    store.reject(revise, 'uma', 'too much')
    with pytest.raises(SkillRefused, match='was rejected before, by uma'):
        store.approve(revise, 'anil')
    assert store.records()[-1].why == 'too much'
    assert read_skill(tmp_path, 'sizing').encode() == SIZING
    done = tmp_path / 'skills' / '.proposed' / 'done'
    assert sorted(path.stem for path in done.iterdir()) == sorted([create, revise])
    store.revert(create, 'anil')
    with pytest.raises(StaleChange, match='was reverted before'):
        store.revert(create, 'anil')
    with pytest.raises(SkillRefused, match='no change'):
        store.revert(revise, 'anil')


@pytest.mark.parametrize('bad', ['', '../../x', '2026-10-19', '2026-10-19-0000000g', '2026-10-19-00000000/..'])
def test_only_an_id_names_a_change(tmp_path: Path, bad: str) -> None:
    """What is no id is refused before it is looked for; an unknown one is told with what to do."""
    store = store_of(tmp_path)
    for call in (lambda: store.approve(bad, 'x'), lambda: store.reject(bad, 'x'), lambda: store.revert(bad, 'x')):
        with pytest.raises(SkillRefused, match='is no id'):
            call()
    for unknown in (store.approve, store.reject, store.revert):
        with pytest.raises(SkillRefused) as refused:
            unknown('2026-10-19-00000000', 'x')
        assert f'trading-agent skills {tmp_path.name}' in refused.value.hint


EDITED = SIZING + b'\nBut on budget day 1 lakh.\n'


@pytest.mark.parametrize('what', ['revise', 'archive'])
def test_a_persons_edit_is_never_overwritten(tmp_path: Path, what: SkillChange) -> None:
    """A skill that was changed since a change of it was proposed stays, and the proposal says that it is stale."""
    store = store_of(tmp_path)
    path = put(tmp_path)
    change = propose(store, what, REVISED if what == 'revise' else b'', SIZING)
    assert not store.is_stale(store.proposal(change))
    path.write_bytes(EDITED)
    assert store.is_stale(store.proposal(change))
    with pytest.raises(StaleChange) as stale:
        store.approve(change, 'anil')
    assert 'somebody has changed it' in str(stale.value)
    assert stale.value.hint
    assert path.read_bytes() == EDITED
    assert [each.kind for each in store.records()] == ['proposed']
    assert len(store.proposals()) == 1


def test_a_skill_that_a_person_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """A new skill does not take the place of one that is there by now; nor does a revert, of what was edited since."""
    store = store_of(tmp_path)
    create = propose(store, 'create', SIZING, None)
    path = put(tmp_path, EDITED)
    with pytest.raises(StaleChange):
        store.approve(create, 'anil')
    assert path.read_bytes() == EDITED
    path.unlink()
    store.approve(create, 'anil')
    path.write_bytes(EDITED)
    with pytest.raises(StaleChange):
        store.revert(create, 'anil')
    assert path.read_bytes() == EDITED


def test_an_edit_in_the_last_moment_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an edit that comes while the old text is being put away stays."""
    store = store_of(tmp_path)
    path = put(tmp_path)
    change = propose(store, 'revise', REVISED, SIZING)

    def edit(written: Path) -> None:
        if '.archive' in written.parts:
            path.write_bytes(EDITED)

    around(monkeypatch, 'replace', after=edit)
    with pytest.raises(StaleChange):
        store.approve(change, 'anil')
    assert path.read_bytes() == EDITED


def test_a_skill_deleted_by_hand(tmp_path: Path) -> None:
    """What a person deleted is not brought back by an approval."""
    store = store_of(tmp_path)
    path = put(tmp_path)
    revise = propose(store, 'revise', REVISED, SIZING)
    path.unlink()
    with pytest.raises(StaleChange):
        store.approve(revise, 'anil')
    assert not path.exists()


@pytest.mark.parametrize(
    'where', ['skills', 'skills/sizing', 'skills/.archive', 'skills/.proposed', 'skills/.archive/sizing']
)
def test_a_link_is_never_followed(tmp_path: Path, where: str) -> None:
    """Where a link stands in the place of a folder nothing is read or written through it."""
    folder, outside = tmp_path / 'desk', tmp_path / 'outside'
    folder.mkdir()
    store = store_of(folder)
    put(folder)
    change = propose(store, 'revise', REVISED, SIZING)
    (folder / 'skills' / '.archive' / 'sizing').mkdir(parents=True)
    (folder / where).rename(outside)
    (folder / where).symlink_to(outside)
    before = tree(outside)
    with pytest.raises(TradingAgentError):
        store.approve(change, 'anil')
    assert tree(outside) == before
    if where in ('skills', 'skills/sizing'):
        assert skill_list(folder) == []
        with pytest.raises(SkillRefused, match='is a link'):
            read_skill(folder, 'sizing')
        assert [each.error for each in scan(folder) if isinstance(each, FaultySkill)] == [f'{folder / where} is a link']


@pytest.mark.parametrize('data', [b'{', b'[]', b'\xff', b'{"id":"x"}'])
def test_a_damaged_proposal_is_left_out(tmp_path: Path, data: bytes) -> None:
    """A proposal that cannot be understood is not listed, told when it is named, and hides no other."""
    store = store_of(tmp_path)
    good = propose(store, 'create', SIZING, None)
    (tmp_path / 'skills' / '.proposed' / '2026-10-19-00000000.json').write_bytes(data)
    (tmp_path / 'skills' / '.proposed' / 'notes.txt').write_text('x')
    assert [each.id for each in store.proposals()] == [good]
    with pytest.raises(SkillRefused, match='2026-10-19-00000000'):
        store.approve('2026-10-19-00000000', 'anil')


def test_a_proposal_cannot_lead_anywhere_else(tmp_path: Path) -> None:
    """A file whose content names a path, another id, or a newer format, is refused."""
    store = store_of(tmp_path)
    path = tmp_path / 'skills' / '.proposed' / f'{propose(store, "create", SIZING, None)}.json'
    good = json.loads(path.read_text())
    for change in ({'name': '../../x'}, {'name': '.archive'}, {'id': '2026-10-19-00000000'}, {'version': 2}):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(SkillRefused):
            store.approve(path.stem, 'anil')
    assert not (tmp_path / 'x').exists()


# -- crashes ---------------------------------------------------------------------------------------------------

PRIMITIVES = ('replace', 'append', 'create', 'remove', 'move', 'make_folder')


def die_at(monkeypatch: pytest.MonkeyPatch, number: int, *, before: bool) -> None:
    """Lets the process die at its n-th write, before it or after it."""
    count = 0

    def step(_: Path) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise Crash

    for name in PRIMITIVES:
        around(monkeypatch, name, **{'before' if before else 'after': step})


@pytest.mark.parametrize('before', [True, False])
@pytest.mark.parametrize('what', ['create', 'revise', 'archive', 'revert create', 'revert revise', 'revert archive'])
def test_a_crash_at_every_write_of_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, *, before: bool
) -> None:
    """Wherever the process dies the skill is whole, old or new; done again, it is done, and written down once."""
    number, died = 0, True
    while died:
        number += 1
        folder = tmp_path / str(number)
        store = store_of(folder)
        old = None if what.endswith('create') else SIZING
        new = {'create': SIZING, 'revise': REVISED, 'archive': None}[what.removeprefix('revert ')]
        if old:
            put(folder, old)
        name: Any = what.removeprefix('revert ')
        change = propose(store, name, new or b'', old)
        do: Callable[[], object] = lambda: store.approve(change, 'anil')  # noqa: B023, E731 - used within the round
        if what.startswith('revert'):
            store.approve(change, 'anil')
            old, new = new, old
            do = lambda: store.revert(change, 'anil')  # noqa: B023, E731 - likewise
        with monkeypatch.context() as patch:
            die_at(patch, number, before=before)
            try:
                do()
                died = False
            except Crash:
                pass
        there = files.read(folder / 'skills' / 'sizing' / 'SKILL.md')
        assert there in (old, new), 'half a skill'
        if died:
            files.sweep(folder / 'skills')
            store.sweep()
            try:
                do()
            except (SkillRefused, StaleChange) as error:
                if 'before' not in str(error):  # it was done, but for telling
                    raise
        assert files.read(folder / 'skills' / 'sizing' / 'SKILL.md') == new
        kinds = [each.kind for each in store.records()]
        assert kinds == ['proposed', 'applied', 'reverted'][: 3 if what.startswith('revert') else 2]
        assert store.proposals() == []
        if old and new:
            kept = [path.read_bytes() for path in (folder / 'skills' / '.archive').rglob('SKILL.md')]
            assert old in kept
    assert number > 3


@pytest.mark.parametrize('mode', ['propose', 'apply'])
@pytest.mark.parametrize('before', [True, False])
async def test_a_crash_at_every_write_of_a_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, *, before: bool
) -> None:
    """Wherever the process dies in a rollover that looks at the skills, each change is proposed or made once."""
    number, died = 0, True
    while died:
        number += 1
        folder = tmp_path / str(number)
        put(folder)
        box = desk(folder, action('revise', body='Never more than 5 lakh.'), action(name='gaps'), mode=mode,
                   disk=InlineDisk())  # fmt: skip
        await box.start()
        await box.turn('what a day')
        box.next_day()
        with monkeypatch.context() as patch:
            die_at(patch, number, before=before)
            try:
                await box.keeper.roll_over_if_due()
                died = False
            except (Crash, BaseExceptionGroup):
                pass
        if died:
            await box.restart()
            await box.keeper.roll_over_if_due()
        store = store_of(folder)
        assert box.router.session_id == '2026-10-20-1'
        proposed = sorted(each.name for each in store.records() if each.kind == 'proposed')
        assert proposed == ['gaps', 'sizing']
        assert len(store.proposals()) == (2 if mode == 'propose' else 0)
        names = [skill.name for skill in skill_list(folder)]
        assert names == (['sizing'] if mode == 'propose' else ['gaps', 'sizing'])
        assert read_skill(folder, 'sizing').encode() == (SIZING if mode == 'propose' else REVISED)
        assert len(box.model.curations) <= 2
    assert number > 20


def test_temporary_files_are_swept(tmp_path: Path) -> None:
    """What a killed writer left among the skills is removed, and nothing else; a link is not followed."""
    store = store_of(tmp_path)
    put(tmp_path)
    for name in ('', 'sizing', '.proposed'):
        (tmp_path / 'skills' / name).mkdir(exist_ok=True)
        (tmp_path / 'skills' / name / '.SKILL.md.01234567.tmp').write_text('half')
    (tmp_path / 'outside').mkdir()
    (tmp_path / 'outside' / '.x.01234567.tmp').write_text('theirs')
    (tmp_path / 'skills' / 'link').symlink_to(tmp_path / 'outside')
    store.sweep()
    assert [path.name for path in tmp_path.rglob('*.tmp')] == ['.x.01234567.tmp']
    assert skill_list(tmp_path)[0].name == 'sizing'
    SkillStore(tmp_path / 'nowhere').sweep()


# -- the folder ------------------------------------------------------------------------------------------------


def test_no_skills(tmp_path: Path) -> None:
    """A desk without the folder has none, and asking for one says so."""
    assert skill_list(tmp_path) == []
    with pytest.raises(SkillRefused) as refused:
        read_skill(tmp_path, 'sizing')
    assert refused.value.hint == 'there is none yet'
    put(tmp_path)
    with pytest.raises(SkillRefused) as refused:
        read_skill(tmp_path, 'sising')
    assert refused.value.hint == "did you mean 'sizing'?"


@pytest.mark.parametrize(
    'name', ['../sizing', 'sizing/..', '', '.', '..', '.archive', 'a' * 65, 'Sizing', 'a\0b', '-a']
)
def test_a_name_never_leads_anywhere(tmp_path: Path, name: str) -> None:
    """What is no name of a skill is refused before anything is looked for."""
    put(tmp_path)
    with pytest.raises(SkillRefused, match='is no name'):
        read_skill(tmp_path, name)


def broken_skills() -> dict[str, bytes]:
    """Returns files that are no skill."""
    return {
        'empty': b'',
        'no-front': b'# How\n',
        'no-end': b'---\nname: no-end\ndescription: x\n',
        'no-name': b'---\ndescription: x\n---\n',
        'other-name': b'---\nname: another\ndescription: x\n---\n',
        'no-words': b'---\nname: no-words\ndescription:\n---\n',
        'long-words': b'---\nname: long-words\ndescription: ' + b'x' * 1025 + b'\n---\n',
        'no-field': b'---\nname: no-field\ndescription: x\nwhat\n---\n',
        'too-long': b'---\nname: too-long\ndescription: x\n---\n' + b'x' * 65_536,
        'Bad Name': SIZING,
    }


def test_faulty_skills_hide_no_good_one(tmp_path: Path) -> None:
    """Each that cannot be used is left out of the list, and told with why."""
    for name, data in broken_skills().items():
        put(tmp_path, data, name)
    put(tmp_path)
    (tmp_path / 'skills' / 'no-file').mkdir()
    (tmp_path / 'skills' / 'folder' / 'SKILL.md').mkdir(parents=True)
    os.mkfifo((tmp_path / 'skills' / 'no-file').parent / 'pipe')
    (tmp_path / 'skills' / 'piped').mkdir()
    os.mkfifo(tmp_path / 'skills' / 'piped' / 'SKILL.md')
    (tmp_path / 'skills' / 'linked').mkdir()
    (tmp_path / 'skills' / 'linked' / 'SKILL.md').symlink_to(tmp_path / 'skills' / 'sizing' / 'SKILL.md')
    assert [skill.name for skill in skill_list(tmp_path)] == ['sizing']
    faulty = {each.name: each.error for each in scan(tmp_path) if isinstance(each, FaultySkill)}
    assert set(faulty) == {*broken_skills(), 'folder', 'piped', 'linked'}
    assert all(faulty.values())


@pytest.mark.parametrize(
    ('front', 'description'),
    [
        ('description: How much: never too much', 'How much: never too much'),
        ('description: "How \\"much\\" to buy"', 'How "much" to buy'),
        ("description: 'It''s how much'", "It's how much"),
        ('description: >-\n  How much\n  to buy', 'How much to buy'),
        ('description: How much\n  to buy', 'How much to buy'),
        ('license: MIT\nmetadata:\n  author: uma\n# a remark\n\ndescription: How much', 'How much'),
    ],
)
def test_front_matter_as_people_write_it(tmp_path: Path, front: str, description: str) -> None:
    """Quotes, blocks, other fields, remarks and Windows line ends are understood; the text is read as it is."""
    for ends in ('\n', '\r\n'):
        text = f'---\nname: sizing\n{front}\n---\n\n# How\n'
        put(tmp_path, ('\ufeff' * (ends != '\n') + text.replace('\n', ends)).encode())
        assert [skill.description for skill in skill_list(tmp_path)] == [description]
        assert read_skill(tmp_path, 'sizing') == text


def test_a_revision_keeps_what_else_a_person_wrote(tmp_path: Path) -> None:
    """Fields beside name and description stay as they stand, in their order."""
    old = b'---\nlicense: MIT\nname: sizing\ndescription: >\n  old\nmetadata:\n  author: uma # her\n---\nold\n'
    new = skill_text('sizing', 'new: words', 'New text.', old)
    assert new.decode() == (
        '---\nname: sizing\ndescription: "new: words"\nlicense: MIT\nmetadata:\n  author: uma # her\n---\n\nNew text.\n'
    )
    put(tmp_path, new)
    assert skill_list(tmp_path)[0].description == 'new: words'


@pytest.mark.parametrize(
    'description',
    [
        'plain words',
        'a: b',
        "it's",
        '- x',
        '# x',
        'x # y',
        'yes',
        '12',
        '"quoted"',
        'ends:',
        'a\nb',
        '{x}',
        '@x',
        'é漢',
    ],
)
def test_a_description_is_read_as_yaml_too(tmp_path: Path, description: str) -> None:
    """What is written is a front matter that any YAML reader reads alike."""
    import yaml

    data = skill_text('sizing', description, 'text')
    put(tmp_path, data)
    read = skill_list(tmp_path)[0].description
    assert read == ' '.join(description.split())
    assert yaml.safe_load(data.decode().split('---')[1]) == {'name': 'sizing', 'description': read}


def test_modes(tmp_path: Path) -> None:
    """All that is written is for the owner alone."""
    store = store_of(tmp_path)
    store.approve(propose(store, 'create', SIZING, None), 'anil')
    store.approve(propose(store, 'revise', REVISED, SIZING), 'anil')
    for path in (tmp_path / 'skills').rglob('*'):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
