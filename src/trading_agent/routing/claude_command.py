"""How the `claude` command is called: its arguments, its environment, and the message that it reads.

Measured on version 2.1.332. Nothing of the desk is on the command line, which every user of the machine can read: the
message comes by stdin, Memory.md and the keys in files that are in memory alone. The message is marked as composed by
a program: else the command would read the files that it mentions (`@/etc/passwd`), and run what begins with `/`.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import msgspec

from trading_agent import json_lines
from trading_agent.errors import BackendDown

PERMISSION_MODES = ('dontAsk', 'acceptEdits', 'plan', 'manual', 'auto', 'bypassPermissions')
"""What the command does with a call that no rule allows; `dontAsk` refuses it."""

_ENVIRONMENT = {
    'LANG': 'C.UTF-8',
    'TZ': 'Asia/Kolkata',  # the command tells the model the date
    'CLAUDE_CODE_MAX_RETRIES': '0',  # the router decides
    'CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK': '1',  # likewise; and what was streamed would come twice
    'CLAUDE_CODE_DISABLE_REFUSAL_RETRY': '1',
    'CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC': '1',
    'DISABLE_TELEMETRY': '1',
    'DISABLE_ERROR_REPORTING': '1',
    'DISABLE_AUTOUPDATER': '1',
    'CLAUDE_CODE_DISABLE_AUTO_MEMORY': '1',  # a desk remembers in Memory.md
    'CLAUDE_CODE_DISABLE_BACKGROUND_TASKS': '1',  # a turn ends with its answer
    'CLAUDE_CODE_DISABLE_CRON': '1',
    'CLAUDE_CODE_DISABLE_FILE_MENTIONS': '1',
    'CLAUDE_CODE_DISABLE_TERMINAL_TITLE': '1',
}


@dataclass(frozen=True)
class Resumed:
    """The session that a turn goes on with.

    Attributes:
        session_id: The session.
        message_id: Its last message: what came after it, in a turn that failed or was cut off, is dropped.
    """

    session_id: str
    message_id: str

    @classmethod
    def of(cls, state: dict[str, Any] | None) -> Self | None:
        """Reads a `runner_state`; None where it names no session."""
        session_id, message_id = ((state or {}).get(name) for name in ('session_id', 'message_id'))
        if isinstance(session_id, str) and session_id and isinstance(message_id, str) and message_id:
            return cls(session_id, message_id)
        return None

    def as_state(self) -> dict[str, Any]:
        """Returns it as a `runner_state`."""
        return {'session_id': self.session_id, 'message_id': self.message_id}


@dataclass(frozen=True, kw_only=True)
class ClaudeCommand:
    """The command as configured; see `ClaudeCodeRunner`."""

    folder: Path
    home: Path
    program: str = 'claude'
    model: str = ''
    base_url: str = ''
    allowed_tools: Sequence[str] = ()
    permission_mode: str = 'dontAsk'
    mcp_config: Path | None = None
    further_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def scratch(self) -> Path:
        """The command's folder for temporary files; what a turn left there is removed before the next."""
        return self.home / 'tmp' / self.folder.name

    def prepared(self) -> str:
        """Makes the folders that the command needs, and returns its path. It blocks.

        Raises:
            BackendDown: There is no such program, or a folder cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.scratch, ignore_errors=True)
            for folder in (self.home, self.scratch.parent, self.scratch):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            hint = 'make the folder belong to the user of the daemon'
            raise BackendDown(f'{error.filename} cannot be made: {error.strerror}', hint) from error
        path = shutil.which(self.program) or (_bundled() if self.program == 'claude' else None)
        if path is None:
            hint = 'install Claude Code for every user of the machine, or name its path with `command`'
            raise BackendDown(f'there is no program {self.program!r} that this user may run', hint)
        return str(Path(path).absolute())

    def environment(self) -> dict[str, str]:
        """Returns the command's whole environment, but for the keys."""
        found = {'PATH': os.environ.get('PATH', os.defpath), **_ENVIRONMENT, 'HOME': str(self.home)}
        found['CLAUDE_CODE_TMPDIR'] = str(self.scratch)
        if self.base_url:
            found['ANTHROPIC_BASE_URL'] = self.base_url
        return {**found, **self.further_environment}

    def for_a_turn(self, resumed: Resumed | None) -> Iterator[str]:
        """Yields the arguments for a turn of the desk; with None it is the first one of a new session."""
        yield from self._always()
        built_in = dict.fromkeys(tool.partition('(')[0] for tool in self.allowed_tools if not tool.startswith('mcp__'))
        yield f'--tools={",".join(built_in)}'
        if self.allowed_tools:
            yield f'--allowedTools={",".join(self.allowed_tools)}'
        if self.mcp_config:
            yield f'--mcp-config={self.mcp_config}'
        if resumed is None:
            yield f'--session-id={uuid.uuid4()}'
        else:
            yield from (f'--resume={resumed.session_id}', f'--resume-session-at={resumed.message_id}')

    def for_a_question(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yields the arguments for a question beside the session: nothing is kept of it, and there are no tools."""
        yield from self._always()
        yield from ('--no-session-persistence', '--tools=')
        if schema:
            yield f'--json-schema={msgspec.json.encode(without_lengths(schema)).decode()}'

    def _always(self) -> Iterator[str]:
        yield from ('--print', '--verbose', '--input-format=stream-json', '--output-format=stream-json')
        # No settings, hooks, skills or instructions that lie about; the prompt above the session may change within it.
        yield from ('--include-partial-messages', '--disable-slash-commands', '--setting-sources=')
        yield from ('--strict-mcp-config', '--system-prompt-snapshot=off', f'--permission-mode={self.permission_mode}')
        if self.permission_mode != 'bypassPermissions':
            yield '--restricted'  # its file tools stay in the folder
        if self.model:
            yield f'--model={self.model}'


def _bundled() -> str | None:
    """Returns the command inside the package `claude-agent-sdk`, where that is installed."""
    spec = find_spec('claude_agent_sdk')
    places = spec.submodule_search_locations if spec else None
    return next((found for place in places or () if (found := shutil.which(Path(place) / '_bundled' / 'claude'))), None)


def message_line(text: str) -> bytes:
    """Returns a message as the command reads it from stdin."""
    return json_lines.encode(
        {
            'type': 'user',
            'message': {'role': 'user', 'content': text},
            'parent_tool_use_id': None,
            'session_id': '',
            'client_composed': True,
        }
    )


def without_lengths(schema: Any) -> Any:  # noqa: ANN401 - any part of a JSON Schema
    """Returns a schema that allows texts of any length: whoever asked cuts them, and the command would ask again."""
    if isinstance(schema, list):
        return [without_lengths(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, part in schema.items():
        if name in ('properties', '$defs', 'patternProperties') and isinstance(part, dict):
            kept[name] = {key: without_lengths(inner) for key, inner in part.items()}
        elif name in ('const', 'enum', 'default', 'examples'):
            kept[name] = part
        elif name != 'maxLength':
            kept[name] = without_lengths(part)
    return kept
