"""For those who bring a backend or a store: their contracts as tests, to be run by pytest.

Example:
    class TestEcho(TurnRunnerContract):
        def make_runner(self) -> TurnRunner:
            return Echo('echo', {})


    class TestRedisStore(SessionStoreContract):
        def make_store(self) -> SessionStore:
            return RedisStore(prefix=uuid4().hex)
"""

from trading_agent.testing.session_store import SessionStoreContract
from trading_agent.testing.turn_runner import (
    ANSWER_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_TURNS,
    TurnRunnerContract,
    turn,
)

__all__ = [
    'ANSWER_SECONDS',
    'LONGEST_PAUSE_SECONDS',
    'MOST_TURNS',
    'SessionStoreContract',
    'TurnRunnerContract',
    'turn',
]
