"""Which session is current, and how sessions are named."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from typing import Any, Self

from trading_agent.errors import InvalidSessionId

_SESSION_ID = re.compile(r'(\d{4}-\d{2}-\d{2})-([1-9]\d{0,8})', re.ASCII)
_DATE = re.compile(r'\d{4}-\d{2}-\d{2}', re.ASCII)


def parse_date(text: str) -> date:
    """Reads `2026-10-19` and nothing else: `date.fromisoformat` takes `2026-W53-1` too.

    Raises:
        ValueError: It is no such date.
    """
    if not isinstance(text, str) or not _DATE.fullmatch(text):  # type: ignore[redundant-expr] # comes from JSON
        raise ValueError(f'not a date like 2026-10-19: {text!r}')
    return date.fromisoformat(text)


def split_session_id(session_id: str) -> tuple[date, int]:
    """Returns the date and the number of a session id.

    Raises:
        InvalidSessionId: It is not like `2026-10-19-1`; a path, for example.
    """
    match = _SESSION_ID.fullmatch(session_id) if isinstance(session_id, str) else None  # type: ignore[redundant-expr]
    try:
        if match is not None:
            return date.fromisoformat(match[1]), int(match[2])
    except ValueError:
        pass
    raise InvalidSessionId(f'not a session id like 2026-10-19-1: {session_id!r}')


def is_session_id(text: str) -> bool:
    """Returns whether a text is a session id."""
    try:
        split_session_id(text)
    except InvalidSessionId:
        return False
    return True


def newest_session(session_ids: Iterable[str], today: date) -> str | None:
    """Returns the newest session dated no later than tomorrow: a later one was dated by a wrong clock."""
    dated = (each for each in session_ids if split_session_id(each)[0] <= today + timedelta(days=1))
    return max(dated, key=split_session_id, default=None)


@dataclass(frozen=True)
class RouteState:
    """What one backend needs to pick up the current session after a restart.

    Attributes:
        exchanges_seen: How many of the session's exchanges the backend knows already.
        runner_state: What the backend's turn runner saved, or None when it keeps nothing.
    """

    exchanges_seen: int
    runner_state: dict[str, Any] | None


@dataclass(frozen=True)
class SessionState:
    """Which session is current.

    Attributes:
        session_id: The session's identifier, such as "2026-10-19-1".
        trading_date: The India date that the session belongs to.
        routes: Each backend's state, keyed by the backend's name.
    """

    session_id: str
    trading_date: date
    routes: dict[str, RouteState] = field(default_factory=dict)

    def seen_at_most(self, exchanges: int, lost: int) -> Self:
        """Returns the state for a log of which less can be read than was written: nobody has seen what is not there.

        Args:
            exchanges: How many exchanges can be read.
            lost: How many cannot any more.
        """
        routes = {
            name: replace(route, exchanges_seen=max(0, min(route.exchanges_seen, exchanges + lost) - lost))
            for name, route in self.routes.items()
        }
        return replace(self, routes=routes)

    def to_json_dictionary(self) -> dict[str, Any]:
        """Converts the state to a dictionary that json.dumps can write, the date as an ISO 8601 string."""
        return {
            'session_id': self.session_id,
            'trading_date': self.trading_date.isoformat(),
            'routes': {name: asdict(route) for name, route in self.routes.items()},
        }

    @classmethod
    def from_json_dictionary(cls, data: dict[str, Any]) -> Self:
        """Reads a state written by to_json_dictionary.

        A route that makes no sense is left out: that backend is caught up from the log.

        Raises:
            KeyError: A field is missing.
            ValueError: The date is not an ISO 8601 date, the session's id is none, or it is of another date.
        """
        session_id, trading_date = data['session_id'], parse_date(data['trading_date'])
        if split_session_id(session_id)[0] != trading_date:
            raise ValueError(f'the session {session_id} is not of {trading_date}')
        routes = data.get('routes')
        return cls(
            session_id=session_id,
            trading_date=trading_date,
            routes=dict(_routes(routes)) if isinstance(routes, dict) else {},
        )


def decode_state(data: bytes) -> tuple[SessionState | None, str]:
    """Reads a state file.

    Returns:
        The state, or None where it is none, and what is wrong with it; empty for nothing.
    """
    try:
        document = json.loads(data.decode('utf-8-sig'))
        state = SessionState.from_json_dictionary(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, f'{type(error).__name__}: {error}'
    routes = document.get('routes', {})
    left_out = [name for name in routes if name not in state.routes] if isinstance(routes, dict) else ['all']
    return state, f'routes make no sense, and are left out: {", ".join(left_out)}' if left_out else ''


def _routes(data: dict[str, Any]) -> Iterator[tuple[str, RouteState]]:
    for name, route in data.items():
        if not isinstance(route, dict):
            continue
        runner_state = route.get('runner_state')
        try:
            seen = int(route.get('exchanges_seen', 0))
        except (ValueError, TypeError, OverflowError):
            continue
        if 0 <= seen < 1 << 53 and (runner_state is None or isinstance(runner_state, dict)):
            yield name, RouteState(exchanges_seen=seen, runner_state=runner_state)
