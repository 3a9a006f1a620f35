"""The tools of an MCP server as a desk may use them: named so that two servers never clash, their schemas usable."""

import copy
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trading_agent.conversation.schema import problems_finder
from trading_agent.conversation.tools import Tool
from trading_agent.errors import InvalidInput

LONGEST_SCHEMA = 32 << 10
"""The longest JSON Schema of a tool's arguments, in bytes: a model reads it in every turn."""

MOST_LEFT_OUT = 20
"""Of how many tools it is told why they are left out."""

_LONGEST_NAME = 64  # characters
_LONGEST_DESCRIPTION = 4000  # characters
_VALUES = frozenset({'const', 'enum', 'default', 'examples'})


@dataclass(frozen=True)
class RemoteTool:
    """A tool as its server tells of it.

    Attributes:
        name: Its name there.
        description: What it is for.
        parameters: The JSON Schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class McpTool(Tool):
    """A tool of a server, as a desk knows it.

    Its arguments are checked before they are sent, but for patterns: one that was written to take for ever would
    stop the whole process. The server checks those.

    Attributes:
        name: The server's name, two underscores and the tool's: 1 to 64 letters, digits, `_` and `-`. A name that
            does not fit is shortened, and told apart by a part of its digest.
        description: What it is for; at most 4000 characters.
        server: The server's name.
        remote_name: The tool's name at its server.

    Raises:
        InvalidInput: Its schema is none.
    """

    server: str = ''
    remote_name: str = ''
    _problems: Callable[[Any], list[str]] = field(default=lambda _: [], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parameters.get('type') != 'object':
            raise InvalidInput('its arguments are no object')
        if len(msgspec.json.encode(self.parameters)) > LONGEST_SCHEMA:
            raise InvalidInput(f'its schema has more than {LONGEST_SCHEMA >> 10} KiB')
        object.__setattr__(self, '_problems', problems_finder(_without_patterns(self.parameters)))

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns arguments as the function takes them.

        Raises:
            ValueError: They do not fit its parameters.
        """
        if problems := self._problems(arguments):
            raise ValueError('; '.join(problems))
        return copy.deepcopy(arguments)


def usable(server: str, listed: Iterable[RemoteTool]) -> tuple[list[McpTool], list[str]]:
    """Returns what a desk can use of a server's tools, and why each other one is left out. It takes a while.

    Args:
        server: The server's name.
        listed: Its tools. Of two with one name the first counts.
    """
    found: dict[str, McpTool] = {}
    left_out: list[str] = []
    for tool in listed:
        name = tool_name(server, tool.name)
        try:
            if name in found:
                raise InvalidInput('there is another one of this name')
            description = tool.description[:_LONGEST_DESCRIPTION]
            found[name] = McpTool(name, description, tool.parameters, _unbound, server=server, remote_name=tool.name)
        except (InvalidInput, ValueError, RecursionError) as error:
            left_out.append(f'{name}: {error}'[:300])
    return list(found.values()), left_out[:MOST_LEFT_OUT]


def tool_name(server: str, tool: str) -> str:
    """Returns the name under which a model is told of a server's tool."""
    name = f'{server}__{tool}'
    if re.fullmatch(rf'[A-Za-z0-9_-]{{1,{_LONGEST_NAME}}}', name) and tool:
        return name
    digest = hashlib.sha256(tool.encode(errors='replace')).hexdigest()[:8]
    return f'{re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _LONGEST_NAME - 9]}-{digest}'


async def _unbound(**_: object) -> str:
    raise NotImplementedError('this tool belongs to no turn')


def _without_patterns(schema: Any) -> Any:  # noqa: ANN401 - any part of a schema
    if isinstance(schema, list):
        return [_without_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {name for name in ('pattern',) if isinstance(schema.get(name), str)}
    if 'patternProperties' in schema:  # what these allow must not be refused as one too many
        left_out |= {'patternProperties', 'additionalProperties', 'unevaluatedProperties'}
    return {
        name: part if name in _VALUES else _without_patterns(part)
        for name, part in schema.items()
        if name not in left_out
    }
