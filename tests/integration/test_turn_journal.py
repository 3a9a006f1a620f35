"""A desk's turns in its journal: everything is in the file before anyone is told of it, and survives any end."""

import errno
import os
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from keeper_fakes import Box, Crash, InlineDisk, around, failing, never, spare_the_disk, until
from router_fakes import Desk, Scripted, says

from trading_agent import files
from trading_agent.conversation.journal import verify
from trading_agent.conversation.records import (
    AnyRecord,
    CallFailed,
    SessionHeader,
    TextCame,
    TurnBegun,
    TurnCut,
    TurnEnded,
    messages_in,
)
from trading_agent.errors import BackendError, NoBackend, TurnRefused
from trading_agent.events import Event, SessionEnded, ToolCalled, ToolFailed, TurnOutput, WriteFailed
from trading_agent.memory.exchange import Exchange
from trading_agent.messages import AssistantMessage, ToolCall, ToolResultMessage, Usage, UserMessage
from trading_agent.routing import model_router
from trading_agent.routing.model_router import ModelRouter
from trading_agent.routing.turn_runner import TextPiece, ToolReturned, Turn, TurnAnswered, TurnEvent, UsageCounted
from trading_agent.routing.turn_runner import ToolCalled as ToolWasCalled
from trading_agent.trigger import Trigger


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_the_disk(monkeypatch)


def said(desk: Desk) -> list[AnyRecord]:
    """Returns the records of the journal without the header."""
    return [line for line in desk.journal() if not isinstance(line, SessionHeader)]


def kinds(desk: Desk) -> list[str]:
    """Returns the kind of each line of the journal."""
    return [str(line.__struct_config__.tag) for line in desk.journal()]


# -- what is in it ---------------------------------------------------------------------------------------------


async def test_every_event_of_a_turn(tmp_path: Path) -> None:
    """What the desk is told, pieces, tool calls, their results, the answers and the end with its usage, in order."""
    desk = Desk(
        tmp_path,
        Scripted(
            TextPiece('Let me '),
            TextPiece('look.'),
            ToolWasCalled('c1', 'quote', {'symbol': 'ABC'}),
            ToolWasCalled('c2', 'news', {}),
            UsageCounted(10, 3),
            ToolReturned('c1', '101.5'),
            ToolReturned('c2', 'no such tool', is_error=True),
            TextPiece('It is at 101.5.'),
            UsageCounted(20, 5, 7),
            TurnAnswered('It is at 101.5.', model='m-1', stop_reason='end_turn'),
        ),
    )
    await desk.run('What of ABC?', attempt=2)
    assert kinds(desk) == [
        'session_header',
        'turn_started',
        'message',
        'text',
        'tool_call',
        'tool_call',
        'message',
        'message',
        'message',
        'text',
        'message',
        'turn_finished',
    ]
    records = said(desk)
    assert {record.turn_id for record in records} == {'t1:2'}
    assert isinstance(records[0], TurnBegun)
    assert (records[0].purpose, records[0].trigger_id, records[0].attempt) == ('turn', 't1', 2)
    assert messages_in(desk.journal()) == [
        UserMessage('What of ABC?', desk.clock.now().timestamp()),
        AssistantMessage(
            'Let me look.',
            [ToolCall('c1', 'quote', {'symbol': 'ABC'}), ToolCall('c2', 'news', {})],
            usage=Usage(10, 3),
            stop_reason='tool_use',
            timestamp=desk.clock.now().timestamp(),
        ),
        ToolResultMessage('c1', 'quote', '101.5', timestamp=desk.clock.now().timestamp()),
        ToolResultMessage('c2', 'news', 'no such tool', is_error=True, timestamp=desk.clock.now().timestamp()),
        AssistantMessage(
            'It is at 101.5.',
            model='m-1',
            usage=Usage(20, 5, 7),
            stop_reason='end_turn',
            timestamp=desk.clock.now().timestamp(),
        ),
    ]
    end = records[-1]
    assert isinstance(end, TurnEnded)
    assert (end.outcome, end.backend, end.usage) == ('answered', 'claude', Usage(30, 8, 7))
    assert end.started_at == '2026-10-19T03:45:00.000000Z'
    assert verify(desk.journal_path).broken is None
    called = [event for event in desk.events if isinstance(event, ToolCalled)]
    assert [(event.tool, event.call_id, event.turn_id) for event in called] == [
        ('quote', 'c1', 't1:2'),
        ('news', 'c2', 't1:2'),
    ]
    failed = [event for event in desk.events if isinstance(event, ToolFailed)]
    assert [(event.tool, event.text) for event in failed] == [('news', 'no such tool')]


async def test_a_backend_that_fails(tmp_path: Path) -> None:
    """Its failure is there with what it used, and what it had said counts for nothing; the next one's answer counts."""
    first = Scripted(TextPiece('half an'), UsageCounted(5, 1), BackendError('overloaded'))
    desk = Desk(tmp_path, first, Scripted(UsageCounted(2, 2), TurnAnswered('whole')))
    await desk.run('news')
    failure = next(record for record in said(desk) if isinstance(record, CallFailed))
    assert (failure.backend, failure.error_type, failure.error) == ('claude', 'BackendError', 'overloaded')
    assert failure.usage == Usage(5, 1)
    assert [message.timestamp and message.__class__ for message in messages_in(desk.journal())] == [
        UserMessage,
        AssistantMessage,
    ]
    assert desk.router.usage.session == Usage(7, 3)
    assert desk.store.exchanges('2026-10-19-1')[0].usage == {'input_tokens': 2, 'output_tokens': 2}


async def test_turns_that_come_to_nothing(tmp_path: Path) -> None:
    """Without a backend a turn is interrupted, refused it has failed: the journal says so, and it holds no messages."""
    desk = Desk(tmp_path, Scripted(BackendError('down')))
    with pytest.raises(NoBackend):
        await desk.run()
    end = said(desk)[-1]
    assert isinstance(end, TurnCut)
    assert end.cause == 'no_backend'
    refusing = Desk(tmp_path / 'other', Scripted(TurnRefused('no')))
    with pytest.raises(TurnRefused):
        await refusing.run()
    failed = said(refusing)[-1]
    assert isinstance(failed, TurnEnded)
    assert failed.outcome == 'failed'
    assert messages_in(desk.journal()) == messages_in(refusing.journal()) == []


async def test_a_question_beside_the_session(tmp_path: Path) -> None:
    """It is in the current session's journal, marked as a review, with its usage, and is no exchange."""
    desk = Desk(tmp_path, Scripted(UsageCounted(100, 50), TurnAnswered('all quiet')))
    await desk.router.restore_session()
    await desk.router.ask([], 'how was it?')
    begun = said(desk)[0]
    assert isinstance(begun, TurnBegun)
    assert begun.purpose == 'review'
    assert kinds(desk)[1:] == ['turn_started', 'message', 'message', 'turn_finished']
    assert desk.router.usage.session == Usage(100, 50)
    assert messages_in(desk.journal()) == []
    assert desk.events == []


# -- write before show -----------------------------------------------------------------------------------------


async def test_nothing_is_told_that_is_not_written(tmp_path: Path) -> None:
    """Whenever a piece is told, the journal has it already, and all pieces together are the answer."""
    chance = random.Random(3)  # noqa: S311 - no secret
    words = [f'word{number} ' * chance.randrange(1, 30) for number in range(60)]

    async def pause() -> None:
        await anyio.sleep(chance.choice([0, 0, 0.01, 0.06]))

    script = [step for word in words for step in (TextPiece(word), pause)]
    runner = Scripted(*script, TurnAnswered(''.join(words)))
    desk = Desk(tmp_path, runner)
    told = ''

    def publish(event: Event) -> None:
        nonlocal told
        if isinstance(event, TurnOutput):
            told += event.text
            written = ''.join(record.text for record in said(desk) if isinstance(record, TextCame))
            assert written.startswith(told)

    router = ModelRouter('main', desk.store, [('claude', runner)], publish, desk.clock)
    desk.router = router
    await desk.run()
    assert told == ''.join(words)


async def test_pieces_are_gathered(tmp_path: Path) -> None:
    """Pieces that come at once are written together, a kibibyte at most and a piece; none waits for the next one."""
    desk = Desk(tmp_path, Scripted(*[TextPiece('0123456789')] * 500, TurnAnswered('0123456789' * 500)))
    await desk.run()
    texts = [record.text for record in said(desk) if isinstance(record, TextCame)]
    assert ''.join(texts) == '0123456789' * 500
    assert 4 <= len(texts) <= 10
    assert max(map(len, texts)) <= 1024 + 10
    waiting = anyio.Event()
    slow = Desk(tmp_path / 'slow', Scripted(TextPiece('one'), waiting.wait, TextPiece('two'), TurnAnswered('onetwo')))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.run)
        await until(lambda: any(isinstance(event, TurnOutput) for event in slow.events))
        assert [record.text for record in said(slow) if isinstance(record, TextCame)] == ['one']
        waiting.set()


async def test_text_after_another_event_does_not_wait(tmp_path: Path) -> None:
    """A piece that comes after a count or a tool call is told as soon as any other."""
    waiting = anyio.Event()
    script = [
        UsageCounted(1, 1),
        ToolWasCalled('c', 'look', {}),
        ToolReturned('c', 'x'),
        TextPiece('one'),
        waiting.wait,
    ]
    desk = Desk(tmp_path, Scripted(*script, TurnAnswered('one')))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await until(lambda: any(isinstance(event, TurnOutput) for event in desk.events))
        waiting.set()


async def test_a_disk_that_refuses_in_mid_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal cannot be written nothing is told and the turn goes on; once it can be, all of it is there."""
    monkeypatch.setattr(model_router, 'WRITE_AGAIN_SECONDS', (0.01, 0.02))
    full = False

    async def fill() -> None:
        nonlocal full
        full = True
        await anyio.lowlevel.checkpoint()

    script = [TextPiece('one '), fill, *[TextPiece('x' * 600)] * 4, UsageCounted(1, 1), TurnAnswered('the answer')]
    desk = Desk(tmp_path, Scripted(*script))
    await desk.router.restore_session()
    refused = 0

    def refuse(path: Path) -> None:
        nonlocal refused, full
        if full:
            refused += 1
            full = refused < 3
            raise failing('append to', path, errno.ENOSPC)

    around(monkeypatch, 'append', refuse)
    with anyio.fail_after(30):
        await desk.run()
    told = ''.join(event.text for event in desk.events if isinstance(event, TurnOutput))
    assert told == 'one ' + 'x' * 2400
    assert ''.join(record.text for record in said(desk) if isinstance(record, TextCame)) == told
    assert any(isinstance(event, WriteFailed) for event in desk.events)
    assert desk.log() == ['the answer']
    assert verify(desk.journal_path).broken is None


# -- interrupted turns -----------------------------------------------------------------------------------------


async def test_a_turn_that_a_crash_cut_off(tmp_path: Path) -> None:
    """After the restart the journal says that it was interrupted; what it had said stays, and holds for nothing."""
    desk = Desk(tmp_path, Scripted(TextPiece('half an'), lambda: never(None)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await until(lambda: any(isinstance(event, TurnOutput) for event in desk.events))
        tasks.cancel_scope.cancel()  # nothing is written of it: so it is after kill -9
    assert not any(isinstance(record, TurnCut) for record in said(desk))
    again = Desk(tmp_path, says('whole'))
    await again.router.restore_session()
    end = said(again)[-1]
    assert isinstance(end, TurnCut)
    assert (end.cause, end.turn_id) == ('crash', 't1:1')
    assert [record.text for record in said(again) if isinstance(record, TextCame)] == ['half an']
    await again.router.restore_session()
    assert kinds(again).count('turn_interrupted') == 1
    assert messages_in(again.journal()) == []


@pytest.mark.parametrize('cause', ['stop', 'pause', 'cancelled', 'restart'])
async def test_a_turn_that_was_cut_off(tmp_path: Path, cause: str) -> None:
    """Whoever cuts it off, the journal says what it was; asked again where nothing runs, it says nothing."""
    desk = Desk(tmp_path, Scripted(UsageCounted(3, 0), lambda: never(None)))
    await desk.router.restore_session()
    with anyio.move_on_after(0.05):
        await desk.run()
    await desk.router.cut_off(cause)  # type: ignore[arg-type] # each of them is one
    await desk.router.cut_off(cause)  # type: ignore[arg-type] # each of them is one
    cuts = [record for record in said(desk) if isinstance(record, TurnCut)]
    assert [(cut.cause, cut.usage) for cut in cuts] == [(cause, Usage(3, 0))]
    assert desk.router.usage.day == Usage(3, 0)


async def test_an_answer_cut_off_on_its_way_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its end is in the journal a turn has ended: cut off then, its exchange is made up for, never asked again."""
    runner = says('precious')
    desk = Desk(tmp_path, runner)
    await desk.router.restore_session()
    full = True

    def refuse(path: Path) -> None:
        if full and path.parent.name == 'sessions':
            raise failing('append to', path, errno.ENOSPC)

    around(monkeypatch, 'append', refuse)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await until(lambda: any(isinstance(event, WriteFailed) for event in desk.events))
        tasks.cancel_scope.cancel()
    await desk.router.cut_off('pause')
    assert kinds(desk)[-1] == 'turn_finished'
    assert desk.log() == []
    full = False
    await desk.router.settle()
    assert desk.log() == ['precious']
    exchange = await desk.run(attempt=2)
    assert exchange.answer == 'precious'
    assert len(runner.turns) == 1
    assert kinds(desk).count('turn_started') == 1


async def test_an_answer_cut_off_on_its_way_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off before its end is in the journal, a turn is interrupted, and is asked again."""
    full = False

    async def fill() -> None:
        nonlocal full
        full = True

    def refuse(path: Path) -> None:
        if full:
            raise failing('append to', path, errno.ENOSPC)

    runner = Scripted(fill, TurnAnswered('precious'))
    desk = Desk(tmp_path, runner)
    await desk.router.restore_session()
    around(monkeypatch, 'append', refuse)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await until(lambda: any(isinstance(event, WriteFailed) for event in desk.events))
        tasks.cancel_scope.cancel()
    full = False
    await desk.router.cut_off('pause')
    assert kinds(desk)[-1] == 'turn_interrupted'
    runner.script = [TurnAnswered('precious')]
    assert (await desk.run(attempt=2)).answer == 'precious'
    assert len(runner.turns) == 2


# -- tokens ----------------------------------------------------------------------------------------------------


class Thrifty:
    """Answers, and counts what it is told to."""

    def __init__(self) -> None:
        self.counts: list[UsageCounted] = []

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        for count in self.counts:
            yield count
        yield TurnAnswered(f'answer to {turn.text}')


async def test_tokens_add_up_by_turn_session_and_day(tmp_path: Path) -> None:
    """Each turn's, each session's and each day's are there, also after a restart; a null count is zero."""
    runner = Thrifty()
    box = Box(tmp_path, runners=[runner])
    await box.start()
    runner.counts = [UsageCounted(1, 2), UsageCounted(10, None, 5)]  # type: ignore[arg-type] # what a plug-in may yield
    await box.turn('one')
    assert box.router.exchanges[-1].usage == {'input_tokens': 11, 'output_tokens': 2, 'cache_read_tokens': 5}
    runner.counts = [UsageCounted(100, 0)]
    await box.turn('two')
    assert box.router.usage.session == box.router.usage.day == Usage(111, 2, 5)
    runner.counts = []
    assert await box.keeper.roll_over() == '2026-10-19-2'
    runner.counts = [UsageCounted(0, 7)]
    await box.turn('three')
    assert (box.router.usage.session, box.router.usage.day) == (Usage(0, 7), Usage(111, 9, 5))
    await box.restart()
    assert (box.router.usage.session, box.router.usage.day) == (Usage(0, 7), Usage(111, 9, 5))
    runner.counts = []
    box.next_day()
    await box.turn('tomorrow')
    assert box.router.usage.day == Usage()


# -- across sessions -------------------------------------------------------------------------------------------


async def test_sessions_are_chained(tmp_path: Path) -> None:
    """A journal's last digest stands in the next one's header and in `session_ended`, so that its end can be proved."""
    box = Box(tmp_path)
    for day in range(3):
        if day:
            box.next_day()
        await (box.restart() if day == 2 else box.start() if not day else box.keeper.roll_over_if_due())
        await box.turn()
    journals = sorted((tmp_path / 'journal').iterdir())
    found = [verify(path) for path in journals]
    assert [verification.broken for verification in found] == [None] * 3
    headers = [verification.header for verification in found]
    assert [header.previous_digest if header else None for header in headers] == ['', found[0].digest, found[1].digest]
    assert [header.previous_session_id if header else None for header in headers] == [
        '',
        '2026-10-19-1',
        '2026-10-20-1',
    ]
    assert [event.journal_digest for event in box.told(SessionEnded)] == [found[0].digest, found[1].digest]


async def test_an_answered_review_is_not_paid_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the model's answer and its record costs no second answer: it is taken from the journal."""
    box = Box(tmp_path, disk=InlineDisk())
    await box.start()
    await box.turn()
    box.next_day()
    records = 0

    def die(path: Path) -> None:
        nonlocal records
        if path.name == 'rollover.json':
            records += 1
            if records == 2:
                raise Crash

    with monkeypatch.context() as patch:
        around(patch, 'replace', die)
        with pytest.raises(Crash):
            await box.keeper.roll_over_if_due()
    assert box.model.reviews == ['2026-10-19-1']
    await box.restart()
    await box.keeper.roll_over_if_due()
    assert box.model.reviews == ['2026-10-19-1']
    assert '2026-10-19-1 had 1 exchanges' in box.summary(box.clock.now().date() - timedelta(days=1))
    assert 'degraded' not in box.summary(box.clock.now().date() - timedelta(days=1))


async def test_a_desk_without_a_journal_gets_one(tmp_path: Path) -> None:
    """A workspace from before journals goes on: its session gets one with the next start."""
    desk = Desk(tmp_path, says('one'))
    await desk.run()
    desk.journal_path.unlink()
    again = Desk(tmp_path, says('two'))
    await again.router.restore_session()
    await again.router.run(Trigger('more', 'main', id='t2'))
    assert again.log() == ['one', 'two']
    assert kinds(again)[0] == 'session_header'
    assert verify(again.journal_path).broken is None


async def test_the_journal_is_private(tmp_path: Path) -> None:
    """Its folder is 0700 and its files are 0600, whatever the umask."""
    old = os.umask(0)
    try:
        desk = Desk(tmp_path, says('one'))
        await desk.run()
    finally:
        os.umask(old)
    assert desk.journal_path.stat().st_mode & 0o777 == 0o600
    assert desk.journal_path.parent.stat().st_mode & 0o777 == 0o700


async def test_an_exchange_is_the_same_from_the_journal(tmp_path: Path) -> None:
    """What the journal says of a finished turn is the exchange that the log has."""
    from trading_agent.conversation.journal_folder import JournalFolder

    desk = Desk(tmp_path, Scripted(TextPiece('a\ud800 '), UsageCounted(1, 2), TurnAnswered('a\ud800 b\0\u2028')))
    kept = await desk.run('told\ud800')
    last = JournalFolder(desk.journal_path.parent, 'main', desk.clock.now).last_turn('2026-10-19-1')
    assert last is not None
    made = last.exchange()
    assert made == Exchange(
        trigger_text=desk.store.exchanges('2026-10-19-1')[0].trigger_text,
        answer=kept.answer,
        backend_name='claude',
        finished_at=kept.finished_at,
        trigger_id='t1',
        started_at=kept.started_at,
        usage=kept.usage,
    )
    assert files.read(desk.journal_path)
