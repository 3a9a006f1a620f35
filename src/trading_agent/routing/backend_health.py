"""Whether a backend is worth asking: a cool-down after a failure, then one trial, shared between the desks."""

import random
from collections.abc import Callable
from typing import Literal

import anyio

from trading_agent.errors import BackendBusy, BackendDown, TradingAgentError
from trading_agent.events import BackendDown as BackendWentDown
from trading_agent.events import BackendUp, Event

COOL_DOWN_SECONDS = (1.0, 120.0)
"""After the first failure it is not asked for the first of these, doubling up to the second."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""A backend that asks to be left alone for longer is tried after this."""

HealthState = Literal['up', 'cooling', 'disabled']


class BackendHealth:
    """How one backend is. Times are the event loop's, so that a simulated night ends no cool-down.

    Args:
        name: Its configured name.
        publish: Where events go.
        cool_down: The first and the longest wait after a failure, in seconds.

    Attributes:
        disabled: Who has taken it out of use, when and why, in words; empty while it is in use.
        failures: How many calls in a row have failed.
        error: What failed last; empty while it is up.
        error_type: The kind of failure, likewise.
        hint: What to do about it, likewise.
    """

    def __init__(
        self,
        name: str,
        publish: Callable[[Event], None],
        cool_down: tuple[float, float] | None = None,
    ) -> None:
        self.name = name
        self._publish = publish
        self._cool_down = cool_down or COOL_DOWN_SECONDS
        self._until = 0.0
        self._trial: object | None = None
        self.disabled = ''
        self.failures = 0
        self.error = self.error_type = self.hint = ''

    @property
    def state(self) -> HealthState:
        """`up`, `cooling` after a failure until a call of it has been answered, or `disabled`."""
        if self.disabled:
            return 'disabled'
        return 'cooling' if self.failures else 'up'

    @property
    def cools_for(self) -> float:
        """How many seconds are left until it is tried again; 0 where it may be asked."""
        return max(0.0, self._until - anyio.current_time()) if self.failures else 0.0

    @property
    def why_not(self) -> str:
        """Why it is not up, in words; empty while it is."""
        if self.disabled:
            return f'it is {self.disabled}'
        if not self.failures:
            return ''
        if self.cools_for:
            return f'it is left alone for {self.cools_for:.0f} s more after: {self.error}'
        return f'it is {"being tried" if self._trial else "tried with the next call"} after: {self.error}'

    def may_be_asked(self) -> bool:
        """Whether a call may be made: it is up, or its cool-down is over and nobody is trying it yet."""
        if self.disabled:
            return False
        return not self.failures or (self._trial is None and anyio.current_time() >= self._until)

    def begin(self) -> object:
        """Says that a call begins; of a backend that has failed it is the trial, and there is one at a time.

        Returns:
            What stands for the call when it ends.
        """
        call = object()
        if self.failures and self._trial is None:
            self._trial = call
        return call

    def end(self, call: object) -> None:
        """Says that a call ended in a way that tells nothing of the backend: it was cut off, or its request refused."""
        if self._trial is call:
            self._trial = None

    def answered(self) -> None:
        """Says that a call was answered."""
        self._trial = None
        if self.failures:
            failures, self.failures = self.failures, 0
            self.error = self.error_type = self.hint = ''
            self._publish(BackendUp(backend=self.name, failures=failures))

    def failed(self, error: Exception, call: object | None = None) -> None:
        """Says that a call failed, so that it is left alone for a while."""
        self.end(call)
        first, longest = self._cool_down
        wait = min(first * 2 ** min(self.failures, 16), longest) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        asked_for = error.retry_after if isinstance(error, BackendBusy | BackendDown) else None
        wait = max(wait, min(asked_for or 0.0, LONGEST_RETRY_AFTER_SECONDS))
        self.failures += 1
        self._until = anyio.current_time() + wait
        self.error, self.error_type = str(error) or type(error).__name__, type(error).__name__
        self.hint = error.hint if isinstance(error, TradingAgentError) else ''
        if self.failures == 1:
            self._publish(
                BackendWentDown(
                    backend=self.name,
                    error_type=self.error_type,
                    error=self.error[:2000],
                    retry_after_ms=round(wait * 1000),
                    hint=self.hint,
                )
            )
