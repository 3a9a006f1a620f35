"""The tools of a desk: its own, and those of its MCP servers, bound to one turn at a time."""

import copy
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from trading_agent.clock import Clock
from trading_agent.conversation.tools import Tool
from trading_agent.disk import Disk
from trading_agent.errors import TradingAgentError
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.skill_folder import read_skill
from trading_agent.tools.mcp_servers import McpServers, allowed
from trading_agent.tools.outcome import ToolError
from trading_agent.tools.wake_up import MOST_OPEN, instant_of, shown, wake_up
from trading_agent.trigger import Receipt, Trigger

T = TypeVar('T')
Ts = TypeVarTuple('Ts')

BUILT_IN = ('note', 'read_skill', 'wake_me')
"""None of them has side effects: done again in a turn that is run again, they change nothing out of the desk."""


@dataclass
class _Counts:
    """What a turn has asked for so far, over all backends that it was tried on."""

    calls: int = 0
    wake_ups: Counter[str] = field(default_factory=Counter)


class DeskTools:
    """What a desk's model may call.

    Every tool has side effects unless `read_only` names it: the n-th call of such a tool in a turn carries the key
    `trigger_id/attempt/n`.

    Args:
        desk: The desk's name.
        folder: The desk's folder, where its notes and skills are.
        send: Hands a trigger to its desk.
        open_wake_ups: Returns how many triggers of the source `wake_me` are open.
        clock: For the times of notes and wake-ups.
        disk: Where file work is done.
        servers: The desk's MCP servers, or None.
        read_only: Patterns of the names of tools without side effects, such as `time__*`.
        allow: Patterns of the names of tools that may be called, the built-in ones too; none for all.
    """

    def __init__(
        self,
        desk: str,
        *,
        folder: Path,
        send: Callable[[Trigger], Awaitable[Receipt]],
        open_wake_ups: Callable[[], int],
        clock: Clock,
        disk: Disk,
        servers: McpServers | None = None,
        read_only: Sequence[str] = (),
        allow: Sequence[str] = (),
    ) -> None:
        self.desk = desk
        self.folder = folder
        self.notes = DayNotes(folder)
        self.send = send
        self.open_wake_ups = open_wake_ups
        self.clock = clock
        self.disk = disk
        self._servers = servers
        self._read_only = tuple(read_only)
        self._built_in = self._own_tools(tuple(allow))
        self._turn: tuple[str, int] = ('', 0)
        self._counts = _Counts()

    def for_turn(self, trigger_id: str, attempt: int, session_id: str) -> list[Tool]:
        """Returns the tools as they are now, for one turn.

        Asked again for the same turn, as for another backend, the numbers of its calls go on: no key is used twice.

        Args:
            trigger_id: The turn's trigger.
            attempt: How often that has been started.
            session_id: The desk's session.
        """
        if self._turn != (trigger_id, attempt):
            self._turn, self._counts = (trigger_id, attempt), _Counts()
        turn = _Turn(self, trigger_id, attempt, session_id, self._counts)
        own = [_with_function(tool, getattr(turn, tool.name)) for tool in self._built_in]
        return own + [_with_function(tool, turn.remote(tool.name, self._servers)) for tool in self._remote]

    def has_side_effects(self, name: str) -> bool:
        """Whether a call of a tool may change something out of the desk; so may one of a tool that is not known."""
        return name not in BUILT_IN and not (self._read_only and allowed(name, self._read_only))

    def digest(self) -> str:
        """Returns the digest of the tools as they are now; see `tools_digest`."""
        return tools_digest([*self._built_in, *self._remote])

    def _own_tools(self, allow: Sequence[str]) -> list[Tool]:
        sample = _Turn(self, '', 0, '', _Counts())
        return [Tool.of(getattr(sample, name)) for name in BUILT_IN if allowed(name, allow)]

    @property
    def _remote(self) -> Sequence[Tool]:
        return self._servers.tools if self._servers is not None else ()


def tools_digest(tools: Sequence[Tool]) -> str:
    """Returns the SHA-256, in hex, of tools as a model is told of them: names, descriptions and schemas."""
    told = [[tool.name, tool.description, tool.parameters] for tool in sorted(tools, key=lambda tool: tool.name)]
    return hashlib.sha256(msgspec.json.encode(told, order='sorted')).hexdigest()


class _Turn:
    """The functions of the tools in one turn."""

    def __init__(self, desk: DeskTools, trigger_id: str, attempt: int, session_id: str, counts: _Counts) -> None:
        self._desk = desk
        self._trigger_id = trigger_id
        self._attempt = attempt
        self._session_id = session_id
        self._counts = counts

    async def note(self, text: str) -> str:
        """Keeps a note until the end of the day, when notes are taken up into the desk's memory.

        Args:
            text: What is worth remembering, in a sentence or two.
        """
        desk = self._desk
        await self._disk(desk.notes.add, self._session_id, text, desk.clock.now())
        return 'The note is kept.'

    async def read_skill(self, name: str) -> str:
        """Returns the instructions of one of the desk's skills. Read a skill before you do what it is for.

        Args:
            name: The skill's name.
        """
        return await self._disk(read_skill, self._desk.folder, name)

    async def wake_me(self, text: str, at: str | None = None, in_minutes: int | None = None) -> str:
        """Wakes you later and tells you a text of yours. You hear nothing else then, so say all that you need.

        Args:
            text: What you want to be told then.
            at: When, in India: a time like 14:30, the next such, or a date and time like 2026-10-19T14:30.
            in_minutes: In how many minutes, in the place of `at`.
        """
        desk = self._desk
        now = desk.clock.now()
        instant = instant_of(at, in_minutes, now)
        self._counts.wake_ups[text] += 1
        # Without the time and the attempt: a turn that is run again asks again, a little later.
        key = '\0'.join((self._trigger_id, str(self._counts.wake_ups[text]), text))
        trigger = wake_up(desk.desk, text, instant, now, key)
        if desk.open_wake_ups() >= MOST_OPEN:
            raise ToolError(f'{MOST_OPEN} wake-ups are waiting already')
        receipt = await desk.send(trigger)
        if receipt.status == 'duplicate':
            return 'You asked for this in this turn before it was cut off: you will be woken as you asked then.'
        if receipt.status == 'refused':
            raise ToolError(f'it was refused: {receipt.reason}')
        return f'You will be woken on {shown(instant)}.'

    async def _disk(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        try:
            return await self._desk.disk.run(function, *arguments)
        except TradingAgentError as error:
            raise ToolError(error.in_words) from error

    def remote(self, name: str, servers: McpServers | None) -> Callable[..., Awaitable[str]]:
        """Returns the function of a server's tool."""

        async def call(**arguments: Any) -> str:  # noqa: ANN401 - as the server's schema says
            key = None
            if self._desk.has_side_effects(name):
                self._counts.calls += 1
                key = f'{self._trigger_id}/{self._attempt}/{self._counts.calls}'
            if servers is None:
                raise ToolError('there are no servers')
            outcome = await servers.call(name, arguments, key=key)
            if outcome.is_error:
                raise ToolError(outcome.text)
            return outcome.text

        return call


def _with_function(tool: Tool, function: Callable[..., Awaitable[Any]]) -> Tool:
    """Returns a tool that calls another function, without checking its schema once more."""
    bound = copy.copy(tool)
    object.__setattr__(bound, 'function', function)
    return bound
