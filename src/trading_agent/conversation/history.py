"""What was said in a session: whole messages that nobody else can change, and never a tool call without its result."""

import json
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from trading_agent.errors import InvalidInput
from trading_agent.messages import AssistantMessage, Message, ToolResultMessage
from trading_agent.trigger import storable

M = TypeVar('M', bound=Message)

_PAIR_HINT = 'add an answer that asks for tools, and then the result of each call'


class History:
    """The messages of a session, oldest first.

    An answer that asks for tools is kept aside until the result of each call has been added; it and they become
    part of the history together.

    Args:
        messages: What was said so far. It is copied.

    Raises:
        InvalidInput: One is no message, a call has no result, or a result has no call.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._aside: list[Message] = []
        self._missing: list[str] = []
        for number, message in enumerate(messages):
            try:
                self.add(message)
            except InvalidInput as error:
                raise InvalidInput(f'message {number}: {error}', error.hint) from error
        self.require_whole()

    @classmethod
    def of_whole(cls, messages: list[Message]) -> 'History':
        """Makes one of messages that are known to fit, and that the caller hands over: nothing is copied or checked."""
        history = cls()
        history._messages = messages
        return history

    @property
    def messages(self) -> Sequence[Message]:
        """The messages themselves, for those who change none of them."""
        return self._messages

    def copies(self) -> list[Message]:
        """Returns copies, of which everything may be changed."""
        return [copy_of(message) for message in self._messages]

    def add(self, message: Message) -> None:
        """Adds a copy of a message.

        Raises:
            InvalidInput: It is no message, or not the one that can come next: while calls wait for their results,
                only these can.
        """
        own = own_message(message)
        if isinstance(own, ToolResultMessage):
            if own.tool_call_id not in self._missing:
                raise InvalidInput(f'no call {own.tool_call_id!r} waits for a result', _PAIR_HINT)
            self._missing.remove(own.tool_call_id)
            self._aside.append(own)
            if not self._missing:
                self._messages += self._aside
                self._aside = []
            return
        self.require_whole()
        calls = [call.id for call in own.calls] if isinstance(own, AssistantMessage) else []
        if '' in calls or len(set(calls)) < len(calls):
            raise InvalidInput('each tool call of a message needs an id of its own')
        if calls:
            self._aside, self._missing = [own], calls
        else:
            self._messages.append(own)

    def extend(self, messages: Sequence[Message]) -> None:
        """Adds messages that are whole, and that the caller hands over."""
        self._messages += messages

    def clear(self) -> None:
        """Forgets everything, also what was kept aside."""
        self._messages, self._aside, self._missing = [], [], []

    def require_whole(self) -> None:
        """Sees to it that no call waits for its result.

        Raises:
            InvalidInput: One does.
        """
        if self._missing:
            raise InvalidInput(f'the tool call {self._missing[0]!r} has no result', _PAIR_HINT)


def own_message(message: M) -> M:
    """Returns a copy that shares nothing with the message. A lone surrogate becomes U+FFFD.

    Raises:
        InvalidInput: It is no message, or JSON could not hold all of it.
    """
    if not isinstance(message, Message):
        raise InvalidInput(f'this is no message but a {type(message).__name__}', 'see trading_agent.messages')
    try:
        try:
            line, exact = msgspec.json.encode(message), True
        except UnicodeEncodeError:
            plain = msgspec.to_builtins(message)
            line, exact = storable(json.dumps(plain, ensure_ascii=False)).encode(), False
        own = msgspec.json.decode(line, type=type(message))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f'the message cannot be kept: {error}') from error
    if exact and own != message:
        raise InvalidInput('the message cannot be kept: JSON cannot hold all of it', 'no NaN, and text for keys')
    return own


def copy_of(message: Message) -> Message:
    """Returns a copy of a message of a history, of which everything may be changed."""
    if not isinstance(message, AssistantMessage):
        return message  # nothing in it can change
    if not message.tool_calls and isinstance(message.content, str):
        return msgspec.structs.replace(message, tool_calls=[])
    return msgspec.json.decode(msgspec.json.encode(message), type=AssistantMessage)
