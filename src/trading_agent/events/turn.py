"""What happens in the turns of a desk: its backends and its tools."""

from typing import ClassVar, Literal

from trading_agent.events.base import Event, Level


class TurnStarted(Event, frozen=True, kw_only=True):
    """A trigger is being run, or several of a feed as one."""

    trigger_id: str
    turn_id: str
    attempt: int
    source: str
    wait_ms: int
    triggers: int = 1


class TurnOutput(Event, frozen=True, kw_only=True):
    """A piece of an answer as it comes. Not logged."""

    level: ClassVar[Level] = 'debug'
    logged: ClassVar[bool] = False

    trigger_id: str
    turn_id: str
    backend: str
    text: str


class TurnInterrupted(Event, frozen=True, kw_only=True):
    """A turn ended without an answer, by a crash or a stop; its trigger is run again."""

    level: ClassVar[Level] = 'warning'

    trigger_id: str
    turn_id: str
    attempt: int
    cause: Literal['crash', 'stop', 'restart', 'pause']
    triggers: int = 1


class TurnFinished(Event, frozen=True, kw_only=True):
    """A turn was answered: its exchange is on disk."""

    trigger_id: str
    turn_id: str
    attempt: int
    backend: str
    preferred: bool
    duration_ms: int
    exchanges: int
    answer: str
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    triggers: int = 1


class ToolCalled(Event, frozen=True, kw_only=True):
    """A backend calls a tool; the call is in the journal."""

    trigger_id: str
    turn_id: str
    backend: str
    tool: str
    call_id: str


class ToolFailed(Event, frozen=True, kw_only=True):
    """A tool gave back an error, which the model is told; `text` is what it said."""

    level: ClassVar[Level] = 'warning'
    gathered: ClassVar[bool] = True

    trigger_id: str
    turn_id: str
    backend: str
    tool: str
    call_id: str
    text: str


class ToolServerDown(Event, frozen=True, kw_only=True):
    """An MCP server of a desk cannot be reached: its calls fail, the desk goes on, and it is tried again."""

    level: ClassVar[Level] = 'warning'
    gathered: ClassVar[bool] = True

    server: str
    error: str
    hint: str


class ToolServerUp(Event, frozen=True, kw_only=True):
    """An MCP server of a desk is ready."""

    server: str
    tools: int


class ModelCallFailed(Event, frozen=True, kw_only=True):
    """A backend could not answer; the next one is asked."""

    level: ClassVar[Level] = 'warning'
    gathered: ClassVar[bool] = True

    backend: str
    purpose: str
    trigger_id: str | None = None
    duration_ms: int
    error_type: str
    error: str
    hint: str = ''


class BudgetWarned(Event, frozen=True, kw_only=True):
    """A desk has used four fifths of what it may use of a backend on a trading day. Told once a day."""

    level: ClassVar[Level] = 'warning'

    backend: str
    tokens: int
    budget: int
    hint: str


class BudgetExhausted(Event, frozen=True, kw_only=True):
    """A desk has used up what it may use of a backend on a trading day: the next one is asked. Told once a day."""

    level: ClassVar[Level] = 'error'

    backend: str
    tokens: int
    budget: int
    hint: str
