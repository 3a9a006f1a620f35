"""The contract of a turn runner as tests."""

import json
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import date
from functools import partial
from typing import Any, TypeVar

import anyio

from trading_agent.errors import BackendError, TurnRefused
from trading_agent.memory.exchange import Exchange
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent, TurnRunner

T = TypeVar('T')

ANSWER_SECONDS = 30.0
"""How long a runner may take in these tests; override `answer_seconds` for a slow model."""

LONGEST_PAUSE_SECONDS = 0.5
"""How long a runner may hold up everything else in the process."""

MOST_TURNS = 8
"""No test asks for more turns than this, and ends by itself within the time that they may take."""

_SCHEMA = {
    'type': 'object',
    'properties': {'summary': {'type': 'string', 'minLength': 1}},
    'required': ['summary'],
    'additionalProperties': False,
}


def turn(text: str, **changes: Any) -> Turn:  # noqa: ANN401 - any field of a Turn
    """Returns a turn to try a runner with."""
    fields: dict[str, Any] = {
        'desk': 'contract',
        'session_id': '2026-10-19-1',
        'trading_date': date(2026, 10, 19),
        'text': text,
    }
    return Turn(**{**fields, **changes})


class TurnRunnerContract:
    """What every backend's runner must do. Subclass it, name the class `Test…`, and say how to make one.

    Attributes:
        answer_seconds: How long a turn may take.
    """

    answer_seconds = ANSWER_SECONDS

    def make_runner(self) -> TurnRunner:
        """Returns a new runner of the backend under test."""
        raise NotImplementedError

    async def collect(self, runner: TurnRunner, asked: Turn) -> list[TurnEvent]:
        """Runs a turn to its end, within the time limit."""
        events: list[TurnEvent] = []
        with anyio.move_on_after(self.answer_seconds) as within:
            events = [event async for event in runner.run(asked)]
        assert not within.cancelled_caught, f'no answer within {self.answer_seconds:g} s'
        for event in events:
            assert isinstance(event, TurnEvent), f'it yielded a {type(event).__name__}, which is no TurnEvent'
        return events

    def test_the_answer_comes_last_and_once(self) -> None:
        """The last event is the answer, it is not blank, and there is no other."""
        events = self._run(lambda: self.collect(self.make_runner(), turn('What is the plan for today?')))
        answers = [event for event in events if isinstance(event, TurnAnswered)]
        assert len(answers) == 1, f'{len(answers)} answers instead of one'
        assert events[-1] is answers[0], 'something came after the answer'
        assert isinstance(answers[0].answer, str), 'the answer is no text'
        assert answers[0].answer.strip(), 'the answer is blank'

    def test_pieces_make_up_the_answer(self) -> None:
        """Where the answer is streamed, its pieces put together are the answer."""
        events = self._run(lambda: self.collect(self.make_runner(), turn('What is the plan for today?')))
        pieces = [event.text for event in events if isinstance(event, TextPiece)]
        answer = _answer(events).answer
        assert not pieces or ''.join(pieces).strip() == answer.strip(), 'the pieces say something else than the answer'

    def test_a_second_turn_takes_the_state_of_the_first(self) -> None:
        """`runner_state` is None or an object of plain JSON, and a new runner goes on with it."""

        async def two_turns() -> None:
            first = _answer(await self.collect(self.make_runner(), turn('My name is Asha.')))
            assert first.runner_state is None or isinstance(first.runner_state, dict), 'runner_state is no dictionary'
            state = json.loads(json.dumps(first.runner_state))
            assert state == first.runner_state, 'runner_state changes on its way through JSON'
            exchange = Exchange('My name is Asha.', first.answer, 'contract', '2026-10-19T04:00:00Z')
            second = turn('What is my name?', exchanges=[exchange], exchanges_seen=1, runner_state=state)
            assert _answer(await self.collect(self.make_runner(), second)).answer.strip(), 'the second answer is blank'

        self._run(two_turns)

    def test_any_text_is_taken(self) -> None:
        """NUL, line separators, right-to-left marks and emoji are answered, or refused by a BackendError."""

        async def odd_text() -> None:
            for text in ('\0', 'a\u2028b\u2029c\u0085d', '\u202eabc', '📈' * 50, ' x ', 'line\r\nline'):
                try:
                    _answer(await self.collect(self.make_runner(), turn(text)))
                except (BackendError, TurnRefused):
                    continue

        self._run(odd_text)

    def test_a_question_with_a_schema_is_answered_in_json(self) -> None:
        """With a schema the answer is a JSON object that has its required fields, or a BackendError."""

        async def question() -> None:
            exchange = Exchange('never hold ABC overnight', 'noted', 'contract', '2026-10-19T04:00:00Z')
            asked = turn('Summarise the session.', exchanges=[exchange], schema=_SCHEMA)
            try:
                answer = json.loads(_answer(await self.collect(self.make_runner(), asked)).answer)
            except BackendError:
                return
            assert isinstance(answer, dict), 'the answer is no object'
            assert isinstance(answer.get('summary'), str), 'the answer has no text for summary'
            assert answer['summary'].strip(), 'the summary is blank'

        self._run(question)

    def test_a_question_with_an_empty_schema_is_answered_in_text(self) -> None:
        """With an empty schema the answer is plain text, or a BackendError."""

        async def question() -> None:
            try:
                events = await self.collect(self.make_runner(), turn('What do you remember?', schema={}))
            except BackendError:
                return
            assert _answer(events).answer.strip(), 'the answer is blank'

        self._run(question)

    def test_it_lets_the_others_go_on(self) -> None:
        """While it answers, nothing else in the process waits for half a second: it awaits, or uses threads."""

        async def beside() -> None:
            longest = 0.0

            async def look() -> None:
                nonlocal longest
                while True:
                    before = anyio.current_time()
                    await anyio.sleep(0.01)
                    longest = max(longest, anyio.current_time() - before)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look)
                await anyio.sleep(0.02)
                with suppress(BackendError, TurnRefused):
                    await self.collect(self.make_runner(), turn('What is the plan for today?'))
                await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()
            assert longest < LONGEST_PAUSE_SECONDS, f'it blocked the event loop for {longest:.1f} s'

        self._run(beside)

    def test_it_can_be_cut_off(self) -> None:
        """A turn that is cancelled ends: a desk that is stopped, or that a person cuts off, must not wait for it."""

        async def cut_off(after: float) -> None:
            async def forever() -> None:
                with suppress(BackendError, TurnRefused):
                    async for _ in self.make_runner().run(turn('A long question. ' * 100)):
                        pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(forever)
                await anyio.sleep(after)
                tasks.cancel_scope.cancel()

        for after in (0.0, 0.2):
            self._run(partial(cut_off, after))

    def _run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Runs a function in a thread of its own: what cannot be cut off would never let the test end."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(anyio.run(function))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        wait([future], MOST_TURNS * self.answer_seconds)
        assert future.done(), 'it does not end: it cannot be cut off'
        return future.result()


def _answer(events: list[TurnEvent]) -> TurnAnswered:
    assert events, 'nothing came'
    last = events[-1]
    assert isinstance(last, TurnAnswered), 'it ended without an answer'
    return last
