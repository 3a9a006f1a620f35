"""How many tokens a desk may use of a backend on a trading day."""

from collections.abc import Callable
from datetime import date

from trading_agent.events import BudgetExhausted, BudgetWarned, Event
from trading_agent.messages import Usage
from trading_agent.routing.backend import Backend

WARN_SHARE = 0.8


class TokenBudget:
    """Watches one desk's use, and tells of it once a day and backend.

    Args:
        desk: The desk's name.
        publish: Where events go.
    """

    def __init__(self, desk: str, publish: Callable[[Event], None]) -> None:
        self._desk = desk
        self._publish = publish
        self._told: set[tuple[str, date, type[Event]]] = set()

    def why_not(self, backend: Backend, used: Usage, trading_date: date) -> str:
        """Says why a backend has had enough for the day; empty where it has not, or may be asked for any number.

        Args:
            backend: The backend.
            used: What the desk has used of it on the day.
            trading_date: The day.
        """
        budget, spent = backend.limits.daily_tokens, used.total_tokens
        if not budget or spent < budget * WARN_SHARE:
            return ''
        kind = BudgetWarned if spent < budget else BudgetExhausted
        if (backend.name, trading_date, kind) not in self._told:
            self._told.add((backend.name, trading_date, kind))
            self._publish(
                kind(
                    desk=self._desk,
                    trading_date=trading_date,
                    backend=backend.name,
                    tokens=spent,
                    budget=budget,
                    hint=f'raise daily_token_budget of [backends.{backend.name}], or let it be',
                )
            )
        return '' if spent < budget else f'its daily_token_budget of {budget} tokens is used up ({spent})'
