"""A backend that keeps its own session, as a command-line agent does; a plug-in whose options are live objects."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from trading_agent.errors import BackendBusy, BackendDown, BackendError, LostSession
from trading_agent.routing.catch_up import END, caught_up
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent

Told = tuple[str, str]
"""What was told and answered."""

FAULTS = ('busy', 'down', 'error', 'bug', 'lost', 'middle', 'last', 'nothing')


class Resident:
    """It knows of a session what it was told in turns of its own, and what stood in front of its messages.

    Args:
        sessions: What each session holds, by its id; a turn makes a new one of the one that it resumes.
        fault: Says how a turn fails, by its message; None where it does not.
        answer: Answers a message.
    """

    def __init__(
        self, sessions: dict[str, list[Told]], fault: Callable[[str], str | None], answer: Callable[[str], str]
    ) -> None:
        self._sessions = sessions
        self._fault = fault
        self._answer = answer

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        if turn.schema is not None:
            raise BackendError('it makes no reviews')
        fault = self._fault(turn.text)
        resumed = (turn.runner_state or {}).get('session', '')
        if fault == 'lost' and resumed:
            raise LostSession(f'no session {resumed}')
        failures = {'busy': BackendBusy('later'), 'down': BackendDown('no'), 'error': BackendError('odd')}
        if fault in failures:
            raise failures[fault]
        if fault == 'bug':
            raise ValueError('a bug of it')
        message = caught_up(turn.exchanges[turn.exchanges_seen :], turn.text, 1 << 24)
        held = [*(self._sessions[resumed] if resumed else []), *_record_in(message)]
        answer = self._answer(turn.text)
        for half in (answer[:5], answer[5:]):
            yield TextPiece(half)
            if fault == 'middle':
                raise BackendBusy('cut in the middle')
        if fault == 'last':
            raise BackendDown('gone before the end')
        if fault == 'nothing':
            return
        session_id = f'after-{answer}'
        self._sessions[session_id] = [*held, (turn.text, answer)]
        yield TurnAnswered(answer, {'session': session_id})


def _record_in(message: str) -> list[Told]:
    """Returns what stands in front of a message."""
    record, end, _ = message.partition(f'\n\n{END}\n\n')
    lines = record.partition('\n\n')[2].split('\n') if end else []
    return [(line['told'], line['answered']) for line in map(json.loads, lines)]


def resident(_: str, options: dict[str, Any]) -> Resident:
    """Makes a backend of this kind."""
    return Resident(**options)
