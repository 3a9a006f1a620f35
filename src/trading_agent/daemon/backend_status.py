"""How the backends are, in the words of `backends`: what the control socket answers and the command line shows."""

from typing import Protocol

import msgspec

from trading_agent.daemon.disabled_backends import Disabled
from trading_agent.daemon.status import BackendState
from trading_agent.messages import Usage


class BackendUse(msgspec.Struct, frozen=True):
    """How one desk uses a backend.

    Attributes:
        desk: The desk's name.
        place: Which of the desk's backends it is, from 1 for the preferred one.
        usage: Tokens that the desk has used of it on its trading date, those of the running turn left out.
        daily_token_budget: How many it may use on a day; 0 for any number.
        exchanges_behind: How many exchanges of the current session it has not seen.
        tokens_behind: About how many tokens these have.
    """

    desk: str
    place: int
    usage: Usage
    daily_token_budget: int
    exchanges_behind: int
    tokens_behind: int


class BackendReport(msgspec.Struct, frozen=True):
    """One backend.

    Attributes:
        name: Its configured name.
        kind: Its configured kind.
        model: Its configured model; None where none is named.
        state: `up`, `failing` from a failed call until one is answered again, or `disabled` by a person.
        failures: How many calls in a row have failed.
        error_type: The kind of the last failure; empty while none has failed since the last answer.
        error: What went wrong, likewise.
        hint: What to do about it, likewise.
        retry_after_ms: For how long it is still left alone; 0 where the next call may ask it.
        disabled: Who took it out of use, when and why; None while it is in use.
        desks: The desks that use it, in the order of the configuration.
    """

    name: str
    kind: str
    model: str | None
    state: BackendState
    failures: int
    error_type: str
    error: str
    hint: str
    retry_after_ms: int
    disabled: Disabled | None
    desks: list[BackendUse]


class BackendsReport(msgspec.Struct, frozen=True):
    """Every backend that is configured; the built-in `offline` where a desk uses it."""

    backends: list[BackendReport]


class BackendTest(msgspec.Struct, frozen=True):
    """What one tiny call of a backend came to.

    Attributes:
        name: The backend.
        ok: Whether it answered.
        state: How the backend is now.
        duration_ms: How long the whole call took, or until it failed.
        first_output_ms: How long until the first text, or, where none comes in pieces, until the backend told
            anything; None where it told nothing before the whole answer.
        usage: Tokens used.
        model: The model that answered, where the backend said it; else empty.
        error_type: The kind of failure; empty for an answer.
        error: What went wrong, likewise.
        hint: What to do about it, likewise.
    """

    name: str
    ok: bool
    state: BackendState
    duration_ms: int
    first_output_ms: int | None = None
    usage: Usage = Usage()
    model: str = ''
    error_type: str = ''
    error: str = ''
    hint: str = ''


class BackendSwitch(msgspec.Struct, frozen=True):
    """What disabling or enabling a backend came to.

    Attributes:
        name: The backend.
        changed: Whether there was anything to do.
        state: How it is now.
        disabled: Who has taken it out of use, when and why; None while it is in use.
        desks_waiting: The desks that have no backend left in use: their triggers wait.
    """

    name: str
    changed: bool
    state: BackendState
    disabled: Disabled | None
    desks_waiting: list[str]


class BackendsPort(Protocol):
    """What the control socket asks of the daemon about its backends."""

    def names(self) -> list[str]:
        """Returns the names of the backends that can be asked about."""
        ...

    async def report(self) -> BackendsReport:
        """Returns how the backends are."""
        ...

    async def test(self, name: str, by: str) -> BackendTest:
        """Makes one tiny call of a backend, beside all desks."""
        ...

    async def disable(self, name: str, by: str, reason: str) -> BackendSwitch:
        """Takes a backend out of use, for every desk and over restarts; calls that run go on to their end.

        Raises:
            StorageError: It could not be written down; the backend stays in use.
        """
        ...

    async def enable(self, name: str, by: str) -> BackendSwitch:
        """Takes a backend into use again.

        Raises:
            StorageError: It could not be written down; the backend stays out of use.
        """
        ...
