"""For those who test agents and tools without a model: a provider that answers by a script."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.turn_events import TextPiece, TurnEvent

Step = TurnEvent | BaseException | Callable[[], Awaitable[object]]


class ScriptedProvider:
    """Answers each request with the next answer of its script.

    Example:
        provider = ScriptedProvider('Hello.', [ToolCalled('1', 'add', {'a': 1, 'b': 2}), Stopped('tool_use')], '3')
        session = Agent(provider, tools=[add]).session()

    Args:
        answers: A text is a whole answer. A list is what happens, step by step: events are yielded, errors are
            raised, async functions are awaited; it needs its own `Stopped`.

    Attributes:
        requests: What it was asked.
        closed: How many of its answers have come to an end, in whatever way.
    """

    def __init__(self, *answers: str | Sequence[Step]) -> None:
        self._answers = list(answers)
        self.requests: list[ModelRequest] = []
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        """Yields the next answer.

        Raises:
            AssertionError: The script has come to its end.
        """
        assert self._answers, f'request {len(self.requests) + 1} was not expected'
        answer = self._answers.pop(0)
        self.requests.append(request)
        steps = [TextPiece(answer), Stopped('end_turn', 'scripted')] if isinstance(answer, str) else answer
        try:
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, TurnEvent):
                    yield step
                else:
                    await step()
        finally:
            self.closed += 1
