"""What a desk's start makes of a turn that had acted when the machine went down."""

from datetime import UTC, datetime
from pathlib import Path

from daemon_fakes import config_for, daemon_of, until
from keeper_fakes import MONDAY_MORNING

from trading_agent.clock import ManualClock
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.conversation.records import MessageSaid, ToolRequested, TurnBegun
from trading_agent.files import Disk
from trading_agent.memory.session_state import SessionState, split_session_id
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.messages import UserMessage
from trading_agent.trigger import Trigger

SESSION = '2026-10-19-1'


async def test_a_power_cut_behind_a_call(tmp_path: Path) -> None:
    """The call was synced and the trigger's `started` was not: it is closed as unknown, and not run again."""
    clock = ManualClock(MONDAY_MORNING)
    folder = tmp_path / 'desks' / 'main'
    store = SessionStore(folder / 'sessions')
    store.create_session(SESSION)
    store.save_state(SessionState(SESSION, split_session_id(SESSION)[0]))
    queue = TriggerQueue(folder, 'main', clock, lambda _: None, Disk())
    await queue.accept(Trigger('buy ABC', 'main', id='t1', received_at=clock.now()))
    journal = JournalFolder(folder / 'journal', 'main', lambda: datetime.now(UTC)).open(SESSION)
    journal.append(
        TurnBegun(turn_id='t1:1', purpose='turn', trigger_id='t1'),
        MessageSaid(turn_id='t1:1', message=UserMessage('buy ABC')),
        ToolRequested(turn_id='t1:1', id='c1', name='broker__order', arguments={'symbol': 'ABC'}),
        sync=True,
    )
    async with daemon_of(config_for(tmp_path), clock) as daemon:
        desk = daemon.supervisor.desks['main']
        await until(lambda: not desk.queue.depth, 'everything has its outcome')
        result = await desk.result_of('t1')
    assert result is not None
    assert result.outcome == 'unknown'
    (told,) = store.exchanges(SESSION)
    assert told.trigger_id is not None
    assert told.trigger_id.startswith('unknown-')
    assert 'broker__order({"symbol":"ABC"})' in told.trigger_text
