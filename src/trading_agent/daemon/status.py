"""How the daemon is, in the words of `status`: what the control socket answers and the command line shows."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Literal, Protocol, Self

import msgspec

from trading_agent.events import Outcome
from trading_agent.messages import Usage
from trading_agent.routing.backend_health import BackendHealth, HealthState

BackendState = Literal['up', 'failing', 'disabled']
BACKEND_STATES: Mapping[HealthState, BackendState] = {'up': 'up', 'cooling': 'failing', 'disabled': 'disabled'}
DeskState = Literal['starting', 'running', 'paused', 'parked']


class BackendStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One backend of a desk.

    Attributes:
        name: Its configured name.
        state: `up`, `failing` from a failed call until one is answered again, or `disabled` by a person.
        reason: Why it is not up; left out while it is.
    """

    name: str
    state: BackendState
    reason: str = ''

    @classmethod
    def of(cls, health: BackendHealth) -> Self:
        """Returns how a backend is."""
        return cls(health.name, BACKEND_STATES[health.state], health.why_not)


class TurnStatus(msgspec.Struct, frozen=True):
    """The turn that is running.

    Attributes:
        trigger_id: The trigger; the first one where several were gathered.
        attempt: How often the trigger has been started, this time included.
        started_at: When the turn began.
        backend: Who is being asked, or None while the turn waits for that.
        usage: Tokens that this backend has used for it so far, where it counts them as it goes.
        trigger_ids: All triggers that were gathered into it, in order; left out where it is one.
    """

    trigger_id: str
    attempt: int
    started_at: datetime
    backend: str | None
    usage: Usage = Usage()
    trigger_ids: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokensUsed(msgspec.Struct, frozen=True):
    """Tokens that a desk has used, in vain too; those of the running turn are counted when it has ended.

    Attributes:
        session: In the current session.
        day: In all sessions of its trading date.
    """

    session: Usage = Usage()
    day: Usage = Usage()


class DeskStatus(msgspec.Struct, frozen=True):
    """One desk.

    Attributes:
        name: The desk's name.
        state: `starting`, `running`, `paused` or `parked`.
        reason: What is wrong and what to do about it; empty when all is well.
        session_id: The current session, None before the desk has one.
        trading_date: The session's India date.
        exchanges: How many exchanges the session has.
        queue: How many triggers wait or run.
        oldest_trigger_at: When the trigger that has waited longest was received.
        turn: The running turn, or None.
        last_turn_at: When the last answer was given, since the daemon's start.
        backends: The desk's backends, in order of preference.
        next_boundary: When the next trading date begins.
        usage: Tokens used in the session and on its day.
        last_backend: Who gave the last answer, since the daemon's start.
        last_preferred: Whether that was the desk's first backend; None where there is no last answer.
    """

    name: str
    state: DeskState
    reason: str
    session_id: str | None
    trading_date: date | None
    exchanges: int
    queue: int
    oldest_trigger_at: datetime | None
    turn: TurnStatus | None
    last_turn_at: datetime | None
    backends: list[BackendStatus]
    next_boundary: datetime
    usage: TokensUsed = TokensUsed()
    last_backend: str | None = None
    last_preferred: bool | None = None


class DaemonInfo(msgspec.Struct, frozen=True):
    """Which daemon answers."""

    version: str
    run_id: str
    pid: int
    started_at: datetime


class ClockStatus(msgspec.Struct, frozen=True):
    """What time the daemon thinks it is.

    Attributes:
        now_ist: The time in India.
        state: `steady`, or `stepped` within a minute of a step.
    """

    now_ist: datetime
    state: Literal['steady', 'stepped']


class Status(msgspec.Struct, frozen=True):
    """The whole daemon."""

    daemon: DaemonInfo
    clock: ClockStatus
    desks: list[DeskStatus]


class TriggerResult(msgspec.Struct, frozen=True):
    """How a trigger ended."""

    outcome: Outcome
    answer: str | None = None
    backend: str | None = None
    session_id: str | None = None


class RolloverResult(msgspec.Struct, frozen=True):
    """What a rollover asked for by a person came to.

    Attributes:
        rolled_over: False when the session has no exchanges, so that there was nothing to do.
        session_id: The session that is current now.
        previous_session_id: The one that was ended, or None.
    """

    rolled_over: bool
    session_id: str
    previous_session_id: str | None = None


class ReloadResult(msgspec.Struct, frozen=True):
    """What a reload changed, each thing in words such as `desk main`."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class ControlPort(Protocol):
    """What the control socket asks of the daemon."""

    def status(self) -> Status:
        """Returns how everything is."""
        ...

    def has_desk(self, desk: str) -> bool:
        """Returns whether a desk of that name is configured."""
        ...

    async def result_of(self, desk: str, trigger_id: str) -> TriggerResult | None:
        """Returns how a trigger ended, or None while it is open or where it is not known."""
        ...

    async def pause(self, desk: str, by: str, reason: str, *, now: bool) -> DeskStatus:
        """Holds a desk, after its running turn or cutting it off."""
        ...

    async def resume(self, desk: str, by: str) -> DeskStatus:
        """Lets a paused or parked desk go on.

        Raises:
            DeskUnusable: It is parked since it cannot be cut off.
        """
        ...

    async def cancel(self, desk: str, trigger_id: str, by: str, reason: str) -> TriggerResult | None:
        """Closes a trigger as cancelled; returns how it ended, or None for an unknown one."""
        ...

    async def reload(self) -> ReloadResult:
        """Reads the configuration again and puts it in force.

        Raises:
            ConfigurationError: It is refused whole; the one in force stays.
        """
        ...

    async def roll_over(self, desk: str) -> RolloverResult:
        """Rolls a desk over after its running turn.

        Raises:
            DeskUnusable: The desk is paused, parked or stopping.
        """
        ...
