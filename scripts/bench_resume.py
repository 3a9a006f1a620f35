"""Measures how long it takes to go on with a long session: all of it, and its end alone."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec

from trading_agent.conversation.journal import SessionManager
from trading_agent.conversation.records import AnyLine, MessageSaid
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_store import SessionStore
from trading_agent.messages import AssistantMessage, Usage, UserMessage

MESSAGES = 100_000
LAST = 200

Say = Callable[[str, float, str], None]
MedianPair = Callable[[Callable[[], object], Callable[[], object], int], float]


def bench_resume(folder: Path, say: Say, median_pair: MedianPair) -> None:
    """Loading 100,000 messages against decoding their lines; the last 200 exchanges of a long log against a short."""
    manager = SessionManager(folder / 'messages')
    journal = manager.journal(manager.create_session('long'))
    told = MessageSaid(message=UserMessage('What of ABC? ' * 20, 1760000000.0))
    answered = MessageSaid(message=AssistantMessage('It is at 101.5. ' * 20, [], 'm', Usage(900, 80), 'end_turn', 1.0))
    for _ in range(MESSAGES // 2000):
        journal.append(*[told, answered] * 1000)
    decoder = msgspec.json.Decoder(AnyLine)

    def bare() -> list[object]:
        return [decoder.decode(line) for line in journal.path.read_bytes().split(b'\n') if line]

    ratio = median_pair(lambda: manager.load_session('long'), bare, 5)
    say('load_session of 100,000 messages / decoding its lines', ratio, '1.5')

    store = SessionStore(folder / 'sessions')
    exchange = Exchange('told ' * 40, 'answered ' * 40, 'offline', '2026-10-19T04:00:00.000000Z', 't1')
    line = json.dumps(exchange.to_json_dictionary()).encode() + b'\n'
    for session_id, count in (('2026-10-19-1', LAST), ('2026-10-19-2', MESSAGES)):
        store.create_session(session_id)
        store.log_path(session_id).write_bytes(line * count)
    long, short = (lambda sid=sid: store.exchanges(sid, last=LAST) for sid in ('2026-10-19-2', '2026-10-19-1'))
    assert len(long()) == len(short()) == LAST
    say('last 200 exchanges of 100,000 / of 200: time', median_pair(long, short, 25), 'flat (1)')
    say('last 200 exchanges of 100,000 / of 200: memory', _peak(long) / _peak(short), 'flat (1)')


def _peak(function: Callable[[], object]) -> int:
    """Returns the most memory that a call takes, in bytes."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
