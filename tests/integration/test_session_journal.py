"""A session with a journal: each event is in the file before it is told, and what is read back is the history."""

import errno
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from trading_agent.conversation import Agent, Session, SessionManager
from trading_agent.conversation.journal import Journal, verify
from trading_agent.conversation.records import (
    CallFailed,
    MessageSaid,
    SessionHeader,
    TextCame,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
    records,
)
from trading_agent.errors import StorageError
from trading_agent.messages import Usage
from trading_agent.providers.provider import Stopped
from trading_agent.testing.provider import ScriptedProvider, Step
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnAnswered, UsageCounted

END = Stopped('end_turn', 'm1')
ASKING: list[Step] = [TextPiece('Let me see. '), ToolCalled('1', 'price', {'symbol': 'ABC'}), Stopped('tool_use', 'm1')]
ANSWER: list[Step] = [TextPiece('It is '), UsageCounted(10, 2), TextPiece('41.20.'), END]


async def price(symbol: str) -> str:
    """Returns the last price."""
    return f'{symbol} 41.20'


class Kept:
    """A session whose journal is kept by a SessionManager."""

    def __init__(self, folder: Path, *answers: str | list[Step], tool: Callable[..., object] = price) -> None:
        self.manager = SessionManager(folder)
        self.session_id = self.manager.create_session('talk')
        self.path = folder / 'talk.jsonl'
        self.provider = ScriptedProvider(*answers)
        self.session: Session = Agent(self.provider, tools=[tool]).session(  # type: ignore[list-item]
            self.session_id, journal=Journal(self.path)
        )

    def kinds(self) -> list[str]:
        return [type(record).__name__ for record in records(self.path) if not isinstance(record, SessionHeader)]


async def test_what_is_read_back_is_the_history(tmp_path: Path) -> None:
    """Tool calls, results, a second try at JSON and tokens: the journal's messages are the session's, each in order."""
    kept = Kept(tmp_path, ASKING, ANSWER, 'no JSON', '{"lots": 1}')
    await kept.session.run_async('price?')
    await kept.session.json_async('order?', schema=dict[str, int])
    assert kept.manager.load_session('talk') == kept.session.history()
    assert len(kept.session.history()) == 8
    assert kept.kinds() == [
        'TurnBegun',
        'MessageSaid',
        'TextCame',
        'MessageSaid',
        'ToolRequested',
        'MessageSaid',
        'TextCame',
        'TextCame',
        'MessageSaid',
        'TurnEnded',
        'TurnBegun',
        'MessageSaid',
        'TextCame',
        'MessageSaid',
        'MessageSaid',
        'TextCame',
        'MessageSaid',
        'TurnEnded',
    ]
    found = [record for record in records(kept.path) if not isinstance(record, SessionHeader)]
    assert len({record.turn_id for record in found}) == 2
    assert all(record.turn_id for record in found)
    ends = [record for record in found if isinstance(record, TurnEnded)]
    assert [(end.outcome, end.backend, end.usage) for end in ends] == [
        ('answered', 'm1', Usage(10, 2)),
        ('answered', 'scripted', None),
    ]
    assert verify(kept.path).broken is None


async def test_write_before_show(tmp_path: Path) -> None:
    """Whenever something is told, it is in the file; a tool is called only after its call is."""
    seen: list[str] = []

    async def look(symbol: str) -> str:
        seen.append(kept.kinds()[-1])
        return symbol

    kept = Kept(
        tmp_path, [*ASKING[:1], ToolCalled('1', 'look', {'symbol': 'A'}), Stopped('tool_use')], ANSWER, tool=look
    )
    async for event in kept.session.events('price?'):
        last = [record for record in records(kept.path) if not isinstance(record, SessionHeader)][-1]
        match event:
            case TextPiece(text=text):
                assert isinstance(last, TextCame)
                assert last.text == text
            case ToolCalled(id=call_id):
                assert isinstance(last, ToolRequested)
                assert last.id == call_id
            case ToolReturned(content=content):
                assert isinstance(last, MessageSaid)
                assert getattr(last.message, 'content', None) == content
            case TurnAnswered():
                assert isinstance(last, TurnEnded)
            case _:
                pass
    assert seen == ['ToolRequested']
    assert isinstance(next(record for record in records(kept.path) if not isinstance(record, SessionHeader)), TurnBegun)


async def test_what_comes_to_nothing_is_marked(tmp_path: Path) -> None:
    """A dropped, a cancelled and a failed turn stay visible as such, with what they cost, and are no messages."""
    half: list[Step] = [UsageCounted(3, 1), TextPiece('half'), TextPiece('more'), anyio.sleep_forever]
    kept = Kept(tmp_path, half, half, [*half[:2], ValueError('bad key')], half[:2], 'yes')
    async with await kept.session.stream_async('one') as stream:
        await anext(stream)
    with anyio.move_on_after(0.05):
        await kept.session.run_async('two')
    for text in ('three', 'four'):
        with pytest.raises(Exception, match=r'bad key|was cut'):
            await kept.session.run_async(text)
    await kept.session.run_async('five')
    ends = [record for record in records(kept.path) if isinstance(record, TurnCut | CallFailed | TurnEnded)]
    assert [type(end).__name__ for end in ends] == ['TurnCut', 'TurnCut', *['CallFailed', 'TurnCut'] * 2, 'TurnEnded']
    assert [end.cause for end in ends if isinstance(end, TurnCut)] == ['dropped', 'dropped', 'no_backend', 'no_backend']
    assert [end.usage for end in ends[:4]] == [Usage(3, 1), Usage(3, 1), Usage(3, 1), None]
    failure = ends[2]
    assert isinstance(failure, CallFailed)
    assert (failure.error_type, failure.error) == ('ValueError', 'bad key')
    assert kept.manager.load_session('talk') == kept.session.history()
    assert len(kept.session.history()) == 2


def test_sync_ways_write_too(tmp_path: Path) -> None:
    """`run`, and a stream that is left early, in event loops of their own."""
    kept = Kept(tmp_path, 'yes', [TextPiece('half'), TextPiece('more'), END], ANSWER)
    kept.session.run('one')
    for _ in kept.session.stream('two'):
        break
    assert kept.kinds()[-2:] == ['TextCame', 'TurnCut']
    assert ''.join(kept.session.stream('three')) == 'It is 41.20.'
    assert kept.kinds()[-1] == 'TurnEnded'
    assert kept.manager.load_session('talk') == kept.session.history()


@pytest.mark.parametrize('writes', [0, 1, 2])
async def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """What cannot be written is not told: the turn fails, the history is as it was, and the next one is answered."""
    kept = Kept(tmp_path, 'yes', 'again')
    real = kept.session._turns._journal
    assert real is not None
    append, done = real.append, 0

    def full(*new: object, sync: bool = False) -> None:
        nonlocal done
        done += 1
        if done > writes:
            raise StorageError('append to', kept.path, OSError(errno.ENOSPC, 'full'))
        append(*new, sync=sync)  # type: ignore[arg-type]

    told = []

    async def tell() -> None:
        async for event in kept.session.events('one'):
            told.append(event)  # noqa: PERF401 - what came before the failure counts

    with monkeypatch.context() as patch:
        patch.setattr(real, 'append', full)
        with pytest.raises(StorageError):
            await tell()
    assert told == [TextPiece('yes')][: writes - 1 if writes else 0]
    assert kept.session.history() == []
    assert len(kept.provider.requests) == (writes > 0)
    assert (await kept.session.run_async('two')).text
    assert kept.manager.load_session('talk') == kept.session.history()
