"""What a desk's start makes of a turn that had acted when the machine went down."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from daemon_fakes import config_for, daemon_of, until
from keeper_fakes import MONDAY_MORNING

from trading_agent.clock import ManualClock
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.conversation.records import AnyRecord, MessageSaid, ToolRequested, TurnBegun, TurnCut, TurnEnded
from trading_agent.disk import Disk
from trading_agent.memory.session_state import SessionState, split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.messages import AssistantMessage, UserMessage
from trading_agent.trigger import Trigger

SESSION = '2026-10-19-1'


class Night:
    """A desk whose machine went down: its files as they were left, and what its next start makes of them."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(MONDAY_MORNING)
        self._workspace = folder
        desk = folder / 'desks' / 'main'
        self.store = SessionStore(desk / 'sessions')
        self.store.create_session(SESSION)
        self.store.save_state(SessionState(SESSION, split_session_id(SESSION)[0]))
        self._queue = TriggerQueue(desk, 'main', self.clock, lambda _: None, Disk())
        self.journal = JournalFolder(desk / 'journal', 'main', lambda: datetime.now(UTC)).open(SESSION)

    async def accept(self, trigger_id: str) -> None:
        await self._queue.accept(Trigger('buy ABC', 'main', id=trigger_id, received_at=self.clock.now()))

    def order(self, trigger_id: str, *ended: AnyRecord) -> None:
        """Writes a turn that makes an order, with these records behind it."""
        turn_id = f'{trigger_id}:1'
        self.journal.append(
            TurnBegun(turn_id=turn_id, purpose='turn', trigger_id=trigger_id),
            MessageSaid(turn_id=turn_id, message=UserMessage('buy ABC')),
            ToolRequested(turn_id=turn_id, id='c1', name='broker__order', arguments={'symbol': 'ABC'}),
            *ended,
            sync=True,
        )

    async def outcome_of(self, trigger_id: str) -> str:
        """Starts the desk and returns how a trigger ended."""
        async with daemon_of(config_for(self._workspace), self.clock) as daemon:
            desk = daemon.supervisor.desks['main']
            await until(lambda: not desk.queue.depth, 'everything has its outcome')
            result = await desk.result_of(trigger_id)
        assert result is not None
        return result.outcome

    def told_of_it(self) -> Exchange:
        """Returns the exchange in which the desk was told what had been called."""
        followed = [each for each in self.store.exchanges(SESSION) if (each.trigger_id or '').startswith('unknown-')]
        assert len(followed) == 1
        return followed[0]


async def test_a_power_cut_behind_a_call(tmp_path: Path) -> None:
    """The call was synced and the trigger's `started` was not: it is closed as unknown, and not run again."""
    night = Night(tmp_path)
    await night.accept('t1')
    night.order('t1')
    assert await night.outcome_of('t1') == 'unknown'
    assert 'broker__order({"symbol":"ABC"})' in night.told_of_it().trigger_text
    assert len(night.store.exchanges(SESSION)) == 1


@pytest.mark.parametrize('ended', [(), (TurnCut(turn_id='t1:1', cause='unknown'),)], ids=['torn', 'cut'])
async def test_another_turn_behind_one_that_had_acted(tmp_path: Path, ended: tuple[AnyRecord, ...]) -> None:
    """A full disk kept the outcome of what had acted from being written, and another turn ran before the crash."""
    night = Night(tmp_path)
    await night.accept('t1')
    night.order('t1', *ended)
    night.journal.append(
        TurnBegun(turn_id='t2:1', purpose='turn', trigger_id='t2'),
        MessageSaid(turn_id='t2:1', message=UserMessage('hello')),
        MessageSaid(turn_id='t2:1', message=AssistantMessage('hello')),
        TurnEnded(turn_id='t2:1', outcome='answered', backend='offline'),
    )
    assert await night.outcome_of('t1') == 'unknown'
    assert 'broker__order({"symbol":"ABC"})' in night.told_of_it().trigger_text
