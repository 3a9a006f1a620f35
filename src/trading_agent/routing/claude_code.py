"""Runs the turns of a desk on the `claude` command (Claude Code): one process a turn, which keeps its own session."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from trading_agent.credentials import without_secrets
from trading_agent.errors import BackendDown, BackendError, TradingAgentError
from trading_agent.routing.catch_up import ASKED_ABOUT, caught_up
from trading_agent.routing.claude_command import ClaudeCommand, Resumed, message_line
from trading_agent.routing.claude_failures import failure_of, too_old
from trading_agent.routing.claude_stream import ClaudeStream, Fields, decode
from trading_agent.routing.guarded_process import GuardedProcess, in_memory
from trading_agent.routing.turn_runner import TextPiece, ToolReturned, Turn, TurnAnswered, TurnEvent, UsageCounted
from trading_agent.routing.turn_text import system_prompt, timed

LINGER_SECONDS = 5.0
"""How long the command may take to end by itself after its answer: it writes its session down."""

_LONG_LINE_BYTES = 1 << 18  # a longer one is read in a thread


class ClaudeCodeRunner:
    """A turn runner over the `claude` command.

    Its `runner_state` names the session and the last message in it. A turn resumes the session at that message, so
    that a turn that failed, or was cut off, leaves nothing in it; a first turn gets an id that was never used. What
    the backend missed stands in front of the message, and so does all of the session where it has none yet.

    A question beside the session is asked in a session of its own, which has no tools and is not kept.

    Args:
        name: The backend's configured name.
        folder: The working directory, which must stay the same: sessions are kept by it. The desk's folder.
        command: The program, looked for in PATH; `claude` also inside the package `claude-agent-sdk`.
        model: The model or its alias; empty for the command's own choice.
        api_key: The key of the API; empty where the command has been logged in under its `home`.
        oauth_token: A subscription's token (`claude setup-token`), in the place of a key.
        base_url: Another address of the API; empty for the usual one.
        home: The command's HOME, where it keeps its sessions; None for `.claude-home` in the folder.
        allowed_tools: The tools that the model may use, such as `Read` or `Bash(git log *)`; it sees no others.
        permission_mode: One of `claude_command.PERMISSION_MODES`.
        mcp_config: A file that names the MCP servers which the command is to start (`--mcp-config`), or None.
        environment: Further variables that the command needs, such as `HTTPS_PROXY`; it sees none of the daemon's.
        catch_up_budget: How many characters of what was missed stand in front of a message at most.

    Attributes:
        name: The backend's configured name.
        acts_by_itself: Whether it may have tools: its whole turn then counts as one call that may have effects.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        command: str = 'claude',
        model: str = '',
        api_key: str = '',
        oauth_token: str = '',
        base_url: str = '',
        home: Path | None = None,
        allowed_tools: Sequence[str] = (),
        permission_mode: str = 'dontAsk',
        mcp_config: Path | None = None,
        environment: Mapping[str, str] | None = None,
        catch_up_budget: int = 200_000,
    ) -> None:
        self.name = name
        self._command = ClaudeCommand(
            folder=folder.absolute(),
            home=(home or folder / '.claude-home').absolute(),
            program=command,
            model=model,
            base_url=base_url,
            allowed_tools=tuple(allowed_tools),
            permission_mode=permission_mode,
            mcp_config=mcp_config.absolute() if mcp_config else None,
            further_environment=dict(environment or {}),
        )
        # By a descriptor, and not in the environment, which every program that the model runs would inherit.
        keys = {
            'CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR': str(api_key),
            'CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR': str(oauth_token),
        }
        self._keys = {variable: key for variable, key in keys.items() if key}
        self._budget = catch_up_budget
        self._reads_skills = 'Read' in self._command.allowed_tools
        self.acts_by_itself = bool(allowed_tools or mcp_config)

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        """Runs one turn and yields its events; of a question beside the session what it used, and the answer.

        Raises:
            BackendError: The command did not answer. A `LostSession` says that its session has gone.
            TurnRefused: The model refuses to answer this.
        """
        stream = ClaudeStream()
        async with await self._start(turn) as process:
            while stream.result is None and (fields := await _next(process)) is not None:
                for event in stream.take(fields):
                    if turn.schema is None or isinstance(event, UsageCounted):
                        yield self._discreet(event)
                if stream.version and (old := too_old(stream.version)) is not None:
                    raise old
            ending = await process.ending(LINGER_SECONDS)
        failure = failure_of(stream, ending)
        if failure is not None:
            raise self._shown(failure)
        answered = stream.answered(schema=bool(turn.schema))
        if not answered.answer.strip():
            raise BackendError('its answer is blank')
        state = Resumed(stream.session_id, stream.message_id).as_state() if turn.schema is None else None
        yield self._discreet(msgspec.structs.replace(answered, runner_state=state))

    async def _start(self, turn: Turn) -> GuardedProcess:
        resumed = Resumed.of(turn.runner_state) if turn.schema is None else None
        program = await anyio.to_thread.run_sync(self._command.prepared)
        message = await anyio.to_thread.run_sync(partial(self._message, turn, resumed))
        if turn.schema is None:
            arguments = list(self._command.for_a_turn(resumed))
        else:
            arguments = list(self._command.for_a_question(turn.schema))
        with ExitStack() as held:
            stdin = held.enter_context(in_memory('message', message))
            above = held.enter_context(in_memory('above', self._above(turn).encode('utf-8', 'replace')))
            keys = {
                variable: held.enter_context(in_memory('key', key.encode())) for variable, key in self._keys.items()
            }
            try:
                return await GuardedProcess.start(
                    [program, *arguments, f'--system-prompt-file=/proc/self/fd/{above}'],
                    stdin=stdin,
                    environment=self._command.environment() | {name: str(number) for name, number in keys.items()},
                    folder=self._command.folder,
                    passed=[above, *keys.values()],
                )
            except OSError as error:
                raise BackendDown(f'no process can be started: {error.strerror}') from error

    def _above(self, turn: Turn) -> str:
        """Returns what stands above the conversation."""
        skills = [(f'skills/{name}/SKILL.md', what) for name, what in turn.skills] if self._reads_skills else []
        return system_prompt(turn.desk, instructions=turn.instructions, memory=turn.memory, skills=skills)

    def _message(self, turn: Turn, resumed: Resumed | None) -> bytes:
        text = timed(turn.text, turn.started_at, turn.trading_date)
        if turn.schema is not None:
            return message_line(caught_up(turn.exchanges, text, self._budget, ASKED_ABOUT))
        missed = turn.exchanges[turn.exchanges_seen :] if resumed else turn.exchanges
        return message_line(caught_up(missed, text, self._budget))

    def _without_keys(self, text: str) -> str:
        return without_secrets(text, self._keys.values())

    def _discreet(self, event: TurnEvent) -> TurnEvent:
        """Keeps the keys out of what the model says, and out of what a tool of its has found."""
        match event:
            case TextPiece(text=text):
                return TextPiece(self._without_keys(text))
            case ToolReturned(content=content):
                return msgspec.structs.replace(event, content=self._without_keys(content))
            case TurnAnswered(answer=answer):
                return msgspec.structs.replace(event, answer=self._without_keys(answer))
            case _:
                return event

    def _shown(self, error: TradingAgentError) -> TradingAgentError:
        error.args = (self._without_keys(str(error)),)
        return error


async def _next(process: GuardedProcess) -> Fields | None:
    """Returns what the next line says that says something; None at the end."""
    while (line := await process.line()) is not None:
        fields = decode(line) if len(line) < _LONG_LINE_BYTES else await anyio.to_thread.run_sync(decode, line)
        if fields is not None:
            return fields
    return None
