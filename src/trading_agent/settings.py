"""What can be configured: every table and key, its default and its range."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from trading_agent.trigger import MAX_TEXT_BYTES
from trading_agent.units import Duration, Size, TimeOfDay

DEFAULT_WORKSPACE = Path('workspace')

LogLevel = Literal['debug', 'info', 'warning', 'error']


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every table: an unknown key is a mistake."""


class ModelOptions(Table, frozen=True, kw_only=True):
    """What the kinds `anthropic` and `openai_compatible` can be told.

    Attributes:
        model: The provider's name of the model.
        api_key_env: The environment variable that holds the key; a key is never written here.
        api_key_credential: Or the systemd credential that holds it.
        base_url: Where the API is, where it is not the provider's own.
        context_tokens: How many tokens the model takes; the session is sent within these.
        max_tokens: The longest answer, in tokens; 0 for the provider's own choice.
        temperature: How freely it answers; none for the provider's own choice.
        first_token_timeout: How long until something of an answer comes.
        between_tokens_timeout: How long nothing more of it may come.
        daily_token_budget: How many tokens a desk may use of it on a trading day; 0 for any number.
    """

    model: str
    api_key_env: str = ''
    api_key_credential: str = ''
    base_url: str | None = None
    context_tokens: int = 128_000
    max_tokens: int = 0
    temperature: float | None = None
    first_token_timeout: Duration = Duration(60)
    between_tokens_timeout: Duration = Duration(60)
    daily_token_budget: int = 0


class ClaudeCodeOptions(Table, frozen=True, kw_only=True):
    """What the kind `claude_code` can be told: the `claude` command, a process for each turn.

    Attributes:
        command: The command; the one that a package brings along is found too.
        model: The model; empty for the command's own choice.
        api_key_env: The environment variable that holds the key; a key is never written here.
        api_key_credential: Or the systemd credential that holds it.
        oauth_token_env: The environment variable that holds a token of `claude setup-token`, in place of a key.
        oauth_token_credential: Or the systemd credential that holds it.
        base_url: Where the API is, where it is not the provider's own.
        home: The command's home; the desk's `.claude-home` by default.
        allowed_tools: Tools of the command that it may use; with any, its whole turn counts as a call with effects.
        permission_mode: What it does with what is not allowed.
        mcp_config: A file of MCP servers for the command itself, or none.
        environment: Further variables of the command's environment.
        catch_up_budget: How much of what it missed it is told at once, in characters.
        first_token_timeout: How long until something of an answer comes.
        between_tokens_timeout: How long nothing more of it may come.
        daily_token_budget: How many tokens a desk may use of it on a trading day; 0 for any number.
    """

    command: str = 'claude'
    model: str = ''
    api_key_env: str = ''
    api_key_credential: str = ''
    oauth_token_env: str = ''
    oauth_token_credential: str = ''
    base_url: str = ''
    home: str | None = None
    allowed_tools: list[str] = []
    permission_mode: str = 'dontAsk'
    mcp_config: str | None = None
    environment: dict[str, str] = {}
    catch_up_budget: int = 200_000
    first_token_timeout: Duration = Duration(120)
    between_tokens_timeout: Duration = Duration(120)
    daily_token_budget: int = 0


class OfflineOptions(Table, frozen=True, kw_only=True):
    """What the built-in `offline` backend can be told, for drills and tests.

    Attributes:
        delay: How long it thinks before the first word.
        chunk_delay: How long between two pieces of the answer.
        fail_every: Every n-th call fails; 0 for never.
        hang_every: Every n-th call never answers; 0 for never.
    """

    delay: Duration = Duration(0)
    chunk_delay: Duration = Duration(0)
    fail_every: int = 0
    hang_every: int = 0


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One `[backends.NAME]`.

    Attributes:
        kind: `offline`, `anthropic`, `openai_compatible`, `claude_code`, or `package.module:callable`.
        options: The further keys, as they stand in the file; each kind knows its own.
    """

    kind: str
    options: dict[str, Any] = {}


class McpServer(Table, frozen=True, kw_only=True):
    """One of a desk's `mcp_servers`: a program that is started, or an address.

    In `env` and `headers` a key that ends in `_env` or `_credential` says where its value is: `TOKEN_env = "NAME"`
    is the environment variable NAME of the daemon under the name TOKEN, `TOKEN_credential = "name"` a systemd
    credential.

    Attributes:
        name: At most 24 of a-z, 0-9, `_` and `-`; its tools are told as `name__tool`.
        command: The program and its arguments. It is found by PATH.
        env: Its environment besides PATH, HOME and LANG: it sees nothing else of the daemon's.
        url: Where it listens (streamable HTTP), in the place of a command.
        headers: HTTP headers sent with every request.
        api_key_env: The environment variable that holds the key sent as `Authorization: Bearer …`.
        api_key_credential: The systemd credential that holds it.
        timeout: How long a call may take.
        max_result: The longest result that the model is shown, in bytes as UTF-8; the rest is cut off.
    """

    name: str
    command: list[str] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    api_key_env: str | None = None
    api_key_credential: str | None = None
    timeout: Duration = Duration(30)
    max_result: Size = Size(64 << 10)

    @property
    def secret_tables(self) -> list[Mapping[str, Any]]:
        """The tables in which secrets are named; see `credentials.secrets_in`."""
        named = {'api_key_env': self.api_key_env, 'api_key_credential': self.api_key_credential}
        return [self.env, self.headers, {key: name for key, name in named.items() if name is not None}]


class Desk(Table, frozen=True, kw_only=True):
    """One `[[desks]]`.

    Attributes:
        name: Matches `[a-z0-9][a-z0-9_-]{0,62}`; also the name of its folder.
        backends: Names of backends, in order of preference.
        rollover_at: When the trading date changes, IST.
        queue_limit: How many triggers may be open before more are refused.
        collect: How long triggers of priority `feed` wait for more, to be run as one turn; 0s for not at all.
        turn_timeout: How long one backend may take for a turn.
        summary_timeout: How long one backend may take for the end-of-day review.
        summary_budget: The longest summary, in characters.
        memory_budget: The longest Memory.md that a review may write, in characters.
        carry_summaries: Most sessions whose summaries a new one begins with.
        skills: Whether changes of skills are proposed to a person (`propose`) or made at once (`apply`).
        read_only_tools: Patterns of tools that have no effects, such as `time__*`; every other one may have some.
        allow: Patterns of the tools that may be called; none for all.
        mcp_servers: Programs or addresses that bring tools.
    """

    name: str
    backends: list[str] = msgspec.field(default_factory=lambda: ['offline'])
    rollover_at: TimeOfDay = TimeOfDay()
    queue_limit: int = 1000
    collect: Duration = Duration(0)
    turn_timeout: Duration = Duration(300)
    summary_timeout: Duration = Duration(180)
    summary_budget: int = 6000
    memory_budget: int = 12000
    carry_summaries: int = 3
    skills: Literal['propose', 'apply'] = 'propose'
    read_only_tools: list[str] = []
    allow: list[str] = []
    mcp_servers: list[McpServer] = []


class Component(Table, frozen=True, kw_only=True):
    """One `[[components]]`: other people's code in the process.

    Attributes:
        name: Names it in the log.
        entry: `package.module:callable`, an `async def component(bus, options)`.
        options: Given to it as they stand.
    """

    name: str
    entry: str
    options: dict[str, Any] = {}


class Common(Table, frozen=True, kw_only=True):
    """The keys at the top that mean in the file what they mean in force.

    Attributes:
        log_level: The lowest level that is logged.
        log_content: Whether the log shows what was said, and not only its length.
        max_concurrent_turns: How many model calls run at once, over all desks.
        drain: How long running turns get at a stop.
        control_group: The group that may use the control socket, or None for the owner alone.
        heartbeat_every: How often `daemon_heartbeat` is told.
        max_trigger_size: The longest trigger text, in bytes as UTF-8; at most 1 MiB.
        watch_config: Whether the configuration is read again when its file is saved.
        disk_low: Free space, in bytes, below which `disk_low` is told.
        disk_low_percent: The same as a share of the file system, in percent.
        components: `[[components]]` tables.
    """

    log_level: LogLevel = 'info'
    log_content: bool = False
    max_concurrent_turns: int = 4
    drain: Duration = Duration(30)
    control_group: str | None = None
    heartbeat_every: Duration = Duration(60)
    max_trigger_size: Size = Size(MAX_TEXT_BYTES)
    watch_config: bool = False
    disk_low: Size = Size(256 << 20)
    disk_low_percent: float = 2.0
    components: list[Component] = []


class File(Common, frozen=True, kw_only=True):
    """The file as it stands, before its parts are checked against each other.

    Attributes:
        workspace: The folder that everything is kept in.
        backends: `[backends.NAME]` tables.
        desks: `[[desks]]` tables; none means one desk `main` on `offline`.
    """

    workspace: str | None = None
    backends: dict[str, Any] = {}
    desks: list[Desk] = []


class Config(Common, frozen=True, kw_only=True):
    """The whole configuration, checked.

    Attributes:
        workspace: The folder that everything is kept in.
        backends: The backends by name; `offline` is always there.
        desks: The desks.
        file: The file that it came from, or None for the built-in default.
    """

    workspace: Path = DEFAULT_WORKSPACE
    backends: dict[str, Backend] = msgspec.field(default_factory=lambda: {'offline': Backend(kind='offline')})
    desks: list[Desk] = msgspec.field(default_factory=lambda: [Desk(name='main')])
    file: Path | None = None


RANGES: dict[str, tuple[float, float, str]] = {
    'max_concurrent_turns': (1, 256, 'from 1 to 256'),
    'drain': (0, 3600, 'from 0s to 1h'),
    'heartbeat_every': (1, 3600, 'from 1s to 1h'),
    'max_trigger_size': (1, MAX_TEXT_BYTES, 'from 1B to 1MiB'),
    'disk_low': (0, 1 << 60, '0B or more'),
    'disk_low_percent': (0, 100, 'from 0 to 100'),
    'queue_limit': (1, 1_000_000, 'from 1 to 1000000'),
    'collect': (0, 3600, 'from 0s to 1h'),
    'turn_timeout': (0.001, 86400, 'from 1ms to 24h'),
    'summary_timeout': (0.001, 86400, 'from 1ms to 24h'),
    'summary_budget': (200, 1_000_000, 'from 200 to 1000000 characters'),
    'memory_budget': (200, 1_000_000, 'from 200 to 1000000 characters'),
    'carry_summaries': (0, 100, 'from 0 to 100'),
    'context_tokens': (1000, 100_000_000, 'from 1000 to 100000000'),
    'max_tokens': (0, 10_000_000, '0 or more'),
    'catch_up_budget': (1000, 100_000_000, 'from 1000 to 100000000 characters'),
    'first_token_timeout': (0.001, 86400, 'from 1ms to 24h'),
    'between_tokens_timeout': (0.001, 86400, 'from 1ms to 24h'),
    'daily_token_budget': (0, 1 << 60, '0 or more'),
    'timeout': (0.1, 3600, 'from 100ms to 1h'),
    'max_result': (1 << 10, 1 << 20, 'from 1KiB to 1MiB'),
    'delay': (0, 86400, 'from 0s to 24h'),
    'chunk_delay': (0, 86400, 'from 0s to 24h'),
    'fail_every': (0, 1_000_000_000, '0 or more'),
    'hang_every': (0, 1_000_000_000, '0 or more'),
}
