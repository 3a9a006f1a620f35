"""What is said in a conversation, message by message. Written as JSON and read back, a message is the same.

A timestamp is a Unix time in seconds, 0 where it is not known; which zone the host has does not matter to it.
"""

from typing import Any

import msgspec


class TextContent(msgspec.Struct, frozen=True, tag_field='type', tag='text'):
    """A text among the parts of an answer."""

    text: str = ''


class ToolCall(msgspec.Struct, frozen=True, tag_field='type', tag='tool_call'):
    """A call of a tool that a model asks for.

    Attributes:
        id: The call's id, which its result names.
        name: The tool.
        arguments: What the tool is given, by name.
    """

    id: str = ''
    name: str = ''
    arguments: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens used. A missing or null count is zero.

    Attributes:
        input_tokens: Tokens read that no cache had.
        output_tokens: Tokens written.
        cache_read_tokens: Tokens read from a cache.
        cache_write_tokens: Tokens read and put into a cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: 'Usage') -> 'Usage':
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def __bool__(self) -> bool:
        return self != Usage()

    @property
    def total_tokens(self) -> int:
        """All of them together."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


class UserMessage(msgspec.Struct, frozen=True, tag_field='role', tag='user'):
    """What the model is told."""

    content: str = ''
    timestamp: float = 0.0


class AssistantMessage(msgspec.Struct, frozen=True, tag_field='role', tag='assistant'):
    """What the model answers.

    Attributes:
        content: The text, or texts and tool calls in the order in which they came.
        tool_calls: The tools that it wants to be called.
        model: Which model answered.
        usage: Tokens used, or None where they were not counted.
        stop_reason: Why it stopped, in the provider's word, or None where that is not known.
        timestamp: When the answer was complete.
    """

    content: str | list[TextContent | ToolCall] = ''
    tool_calls: list[ToolCall] = []
    model: str = ''
    usage: Usage | None = None
    stop_reason: str | None = None
    timestamp: float = 0.0

    @property
    def text(self) -> str:
        """The answer's text alone."""
        if isinstance(self.content, str):
            return self.content
        return ''.join(part.text for part in self.content if isinstance(part, TextContent))

    @property
    def calls(self) -> list[ToolCall]:
        """Every tool call, whether it stands in `tool_calls`, among the parts, or in both."""
        parts = [] if isinstance(self.content, str) else self.content
        known = {call.id for call in self.tool_calls}
        return self.tool_calls + [part for part in parts if isinstance(part, ToolCall) and part.id not in known]


class ToolResultMessage(msgspec.Struct, frozen=True, tag_field='role', tag='tool'):
    """What a tool gave back.

    Attributes:
        tool_call_id: The id of the call.
        name: The tool.
        content: What the model is told of it.
        is_error: Whether the call failed.
        timestamp: When it came back.
    """

    tool_call_id: str = ''
    name: str = ''
    content: str = ''
    is_error: bool = False
    timestamp: float = 0.0


Message = UserMessage | AssistantMessage | ToolResultMessage


def message_from(data: dict[str, Any]) -> Message:
    """Reads a message as other programs write it too: a null field counts as a missing one, a number may be text.

    Raises:
        msgspec.ValidationError: It has no known role, or a field that makes no sense.
    """
    message: Message = msgspec.convert(_without_nulls(data), Message, strict=False)
    return message


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    # What a tool is given is not ours to change.
    return {
        name: inner if name == 'arguments' else _without_nulls(inner)
        for name, inner in value.items()
        if inner is not None
    }
