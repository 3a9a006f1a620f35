"""Tools that a model may call: plain async functions, told to it by their signature and docstring."""

import asyncio
import copy
import functools
import inspect
import itertools
import re
import time
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trading_agent.conversation.schema import problems_finder, schema_of
from trading_agent.errors import InvalidInput
from trading_agent.messages import ToolCall, ToolResultMessage
from trading_agent.providers.provider import ToolSpec
from trading_agent.trigger import storable

_NAME = re.compile(r'[A-Za-z0-9_-]{1,64}')
_SECTION = re.compile(
    r'^(?:Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Note|Notes):\s*$', re.MULTILINE
)
_ARGUMENTS = re.compile(r'^(?:Args|Arguments|Parameters):[ \t]*$', re.MULTILINE)
_ARGUMENT = re.compile(r'^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$')
_LONGEST_ERROR = 4000  # characters


@dataclass(frozen=True)
class Tool:
    """A tool, ready to be called.

    Attributes:
        name: Its name: 1 to 64 letters, digits, `_` and `-`.
        description: What it is for.
        parameters: The JSON Schema of its arguments, an object.
        function: The async function; it is given its arguments by name.
        arguments_type: The struct that arguments are converted to. None checks them by `parameters` instead.

    Raises:
        InvalidInput: One of these is not what it should be.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Awaitable[Any]]
    arguments_type: type[msgspec.Struct] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(str(self.name)):
            raise InvalidInput(
                f"a tool's name is 1 to 64 letters, digits, _ and -, not {self.name!r}", 'give one: Tool(name=…)'
            )
        _require_async(self.name, self.function)
        if self.arguments_type is None:
            problems_finder(self.parameters)

    @classmethod
    def of(cls, function: 'Callable[..., Awaitable[Any]] | Tool') -> 'Tool':
        """Makes a tool of an async function with typed parameters.

        The description is the docstring down to its sections; a parameter is described by its line under `Args:`, or
        by `Annotated[…, msgspec.Meta(description=…)]`.

        Raises:
            InvalidInput: It is not async, or its parameters cannot be told from its signature.
        """
        if isinstance(function, Tool):
            return function
        name = getattr(_inner(function), '__name__', '')
        _require_async(name, function)
        text = inspect.getdoc(_inner(function)) or ''
        kind = _arguments_type(name, function)
        try:
            parameters = schema_of(kind)
        except InvalidInput as error:
            raise InvalidInput(f'the parameters of the tool {name!r} cannot be told to a model: {error}') from error
        parameters.pop('title', None)
        for parameter, described in _described(text).items():
            if parameter in parameters['properties']:
                parameters['properties'][parameter].setdefault('description', described)
        description = _SECTION.split(text, maxsplit=1)[0].strip()
        return cls(name, description, parameters, function, kind)

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model is told of it."""
        return ToolSpec(self.name, self.description, self.parameters)

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns arguments as the function takes them; those that were left out stay out.

        Raises:
            ValueError: They do not fit its parameters.
        """
        own = copy.deepcopy(arguments)  # what the function does to them changes no history
        if self.arguments_type is None:
            if problems := problems_finder(self.parameters)(own):
                raise ValueError('; '.join(problems))
            return own
        converted = msgspec.convert(own, self.arguments_type, str_keys=True)
        return {name: getattr(converted, name) for name in own}


def named(tools: Sequence[Callable[..., Awaitable[Any]] | Tool]) -> dict[str, Tool]:
    """Returns tools by their names.

    Raises:
        InvalidInput: One cannot be a tool, or two have the same name.
    """
    known: dict[str, Tool] = {}
    for tool in map(Tool.of, tools):
        if tool.name in known:
            raise InvalidInput(f'two tools are named {tool.name!r}', 'give one another name: Tool(name=…)')
        known[tool.name] = tool
    return known


async def result_of(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResultMessage:
    """Calls a tool, and returns what the model is told of it; whatever goes wrong is told too, without a traceback.

    Text is told as it is, anything else as JSON. Cancellation goes through.
    """
    try:
        content, is_error = await _called(call, tools), False
    except Exception as error:  # noqa: BLE001 - a tool may raise anything: the model is told
        content, is_error = _told(error), True
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        content, is_error = _told(error), True  # nobody cancels this turn: something inside the tool was cancelled
    return ToolResultMessage(call.id, call.name, storable(content), is_error, time.time())


async def _called(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    tool = tools.get(call.name)
    if tool is None:
        raise LookupError(f'there is no tool {call.name!r}; there are: {", ".join(tools) or "none"}')
    result = await tool.function(**tool.checked(call.arguments))
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def _told(error: BaseException) -> str:
    what = str(error)
    return f'{type(error).__name__}: {what[:_LONGEST_ERROR]}' if what else type(error).__name__


def _inner(function: Any) -> Any:  # noqa: ANN401 - whatever was wrapped
    return _inner(function.func) if isinstance(function, functools.partial) else function


def _require_async(name: str, function: object) -> None:
    called = getattr(function, '__call__', None)  # noqa: B004 - an object with an async __call__ will do
    if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(called):
        hint = 'write `async def`, and call what blocks by anyio.to_thread.run_sync'
        raise InvalidInput(f'the tool {name or function!r} is no async function', hint)


def _arguments_type(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Returns a struct of a function's parameters."""
    inner = _inner(function)
    try:
        hints = typing.get_type_hints(inner if hasattr(inner, '__name__') else inner.__call__, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise InvalidInput(f'the parameters of the tool {name!r} cannot be told: {error}') from error
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            hint = 'a tool is given its arguments by name: list them one by one'
            raise InvalidInput(f'the tool {name!r} takes {parameter}', hint)
        if parameter.name not in hints:
            raise InvalidInput(f'the parameter {parameter.name!r} of the tool {name!r} has no type', 'write one')
        fields.append((parameter.name, hints[parameter.name], *_default(parameter)))
    try:
        return msgspec.defstruct('Arguments', fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f'the parameters of the tool {name!r} cannot be told: {error}') from error


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    """Returns what a struct's field is given for a default: the function fills it in itself, the model is told it."""
    default = parameter.default
    if default is parameter.empty:
        return ()
    plain = default is None or isinstance(default, str | int | float)
    return (default if plain else msgspec.field(default_factory=lambda: default),)


def _described(text: str) -> dict[str, str]:
    """Returns the descriptions of the parameters in a docstring's `Args:`, continued on deeper lines."""
    described: dict[str, str] = {}
    name = ''
    for line in inspect.cleandoc('\n' + _arguments_section(text)).split('\n'):
        begins = _ARGUMENT.match(line)
        if begins:
            name = begins[1]
            described[name] = begins[2]
        elif name and line.strip():
            described[name] += f' {line.strip()}'
    return described


def _arguments_section(text: str) -> str:
    begins = _ARGUMENTS.search(text)
    if begins is None:
        return ''
    lines = text[begins.end() :].lstrip('\n').split('\n')
    return '\n'.join(itertools.takewhile(lambda line: not line.strip() or line[0].isspace(), lines))
