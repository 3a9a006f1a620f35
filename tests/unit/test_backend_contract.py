"""The contract suite for those who bring a backend: the built-in one passes it, and each broken one fails its test."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from trading_agent.config import OfflineOptions
from trading_agent.errors import BackendError, TurnRefused
from trading_agent.providers.offline import OfflineProvider
from trading_agent.routing.provider_runner import ProviderRunner
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent, TurnRunner, UsageCounted
from trading_agent.testing import TurnRunnerContract
from trading_agent.units import Duration


class TestOffline(TurnRunnerContract):
    """The built-in backend."""

    def make_runner(self) -> TurnRunner:
        return ProviderRunner(OfflineProvider())


class TestSlowOffline(TurnRunnerContract):
    """The built-in backend as a drill: slow, and in pieces."""

    def make_runner(self) -> TurnRunner:
        return ProviderRunner(OfflineProvider(OfflineOptions(delay=Duration(0.1), chunk_delay=Duration(0.01))))


class Sound:
    """A backend that does nothing wrong; the broken ones differ from it in one thing."""

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        turns = (turn.runner_state or {}).get('turns', 0) + 1
        yield UsageCounted(input_tokens=1)
        for event in self.events(turn):
            await anyio.lowlevel.checkpoint()
            yield event
        yield self.last(turn, turns)

    def events(self, turn: Turn) -> list[TurnEvent]:
        return [TextPiece('as '), TextPiece('agreed')] if turn.schema is None else []

    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('{"summary": "quiet"}' if turn.schema else 'as agreed', {'turns': turns})


class TestSound(TurnRunnerContract):
    """A backend that streams, keeps state and answers reviews."""

    def make_runner(self) -> TurnRunner:
        return Sound()


class Modest(Sound):
    """Answers turns only, and refuses some."""

    def events(self, turn: Turn) -> list[TurnEvent]:
        if turn.schema is not None:
            raise BackendError('it answers no questions')
        if '\0' in turn.text:
            raise TurnRefused('NUL')
        return []


class TestModest(TurnRunnerContract):
    """A backend that refuses what it cannot do by the errors that are meant for it."""

    def make_runner(self) -> TurnRunner:
        return Modest()


# -- the broken ones ---------------------------------------------------------------------------------------------


class Blank(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('  \n')


class NoText(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered(b'as agreed')  # type: ignore[arg-type]


class Silent(Sound):
    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        return
        yield


class Unfinished(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TextPiece('.')


class TwoAnswers(Sound):
    def events(self, turn: Turn) -> list[TurnEvent]:
        return [TurnAnswered('as agreed')]


class Afterthought(Sound):
    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        yield TurnAnswered('as agreed')
        yield UsageCounted(output_tokens=2)


class PlainText(Sound):
    def events(self, turn: Turn) -> list[TurnEvent]:
        return ['as agreed']  # type: ignore[list-item]


class OtherPieces(Sound):
    def events(self, turn: Turn) -> list[TurnEvent]:
        return [TextPiece('as '), TextPiece('you wish')]


class NotAStream:
    async def run(self, turn: Turn) -> list[TurnEvent]:
        return [TurnAnswered('as agreed')]


class ListAsState(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('as agreed', [turns])  # type: ignore[arg-type]


class ObjectAsState(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('as agreed', {'connection': object()})


class StateThatChanges(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('as agreed', {1: 'a'})  # type: ignore[dict-item]


class ForgetsItsOwnState(Sound):
    def events(self, turn: Turn) -> list[TurnEvent]:
        if turn.runner_state is not None:
            raise KeyError('a resume token of another life')
        return []


class AsciiOnly(Sound):
    def events(self, turn: Turn) -> list[TurnEvent]:
        turn.text.encode('ascii')
        return []


class BrokenJson(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('Here you are: {"summary": "quiet"}' if turn.schema else 'as agreed')


class OtherFields(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('{"text": "quiet"}' if turn.schema else 'as agreed')


class NoObject(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('["quiet"]' if turn.schema else 'as agreed')


class NothingToSay(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        return TurnAnswered('{"summary": " "}' if turn.schema else 'as agreed')


class TakesNoEmptySchema(Sound):
    def last(self, turn: Turn, turns: int) -> TurnEvent:
        if turn.schema is not None:
            return TurnAnswered('{"summary": "quiet"}' if turn.schema['required'] else '')
        return TurnAnswered('as agreed')


class Blocks(Sound):
    def events(self, turn: Turn) -> list[TurnEvent]:
        time.sleep(0.7)
        return []


class Stubborn(Sound):
    """Swallows its cancellation until the test has seen enough."""

    let_go = False

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        until = time.monotonic() + 30
        while not Stubborn.let_go and time.monotonic() < until:
            try:
                await anyio.sleep(0.01)
            except anyio.get_cancelled_exc_class():  # the fault that is tried: it is swallowed
                continue
        yield TurnAnswered('too late')


class InAThread(Sound):
    """Calls something slow in a thread that cannot be left."""

    let_go = False

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        await anyio.to_thread.run_sync(self._wait)
        yield TurnAnswered('too late')

    def _wait(self) -> None:
        until = time.monotonic() + 30
        while not InAThread.let_go and time.monotonic() < until:
            time.sleep(0.01)


class Hangs(Sound):
    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        await anyio.sleep_forever()
        yield TurnAnswered('never')


LAST_ONCE = 'test_the_answer_comes_last_and_once'
PIECES = 'test_pieces_make_up_the_answer'
STATE = 'test_a_second_turn_takes_the_state_of_the_first'
TEXT = 'test_any_text_is_taken'
SCHEMA = 'test_a_question_with_a_schema_is_answered_in_json'
EMPTY = 'test_a_question_with_an_empty_schema_is_answered_in_text'
BESIDE = 'test_it_lets_the_others_go_on'
CUT_OFF = 'test_it_can_be_cut_off'

BROKEN: list[tuple[Callable[[], Any], str, str]] = [
    (Blank, LAST_ONCE, 'the answer is blank'),
    (NoText, LAST_ONCE, 'the answer is no text'),
    (Silent, LAST_ONCE, '0 answers instead of one'),
    (Unfinished, LAST_ONCE, '0 answers instead of one'),
    (TwoAnswers, LAST_ONCE, '2 answers instead of one'),
    (Afterthought, LAST_ONCE, 'something came after the answer'),
    (PlainText, LAST_ONCE, 'it yielded a str, which is no TurnEvent'),
    (NotAStream, LAST_ONCE, "'async for' requires an object with __aiter__"),
    (Hangs, LAST_ONCE, 'no answer within 0.05 s'),
    (OtherPieces, PIECES, 'the pieces say something else'),
    (Silent, PIECES, 'nothing came'),
    (Unfinished, PIECES, 'it ended without an answer'),
    (ListAsState, STATE, 'runner_state is no dictionary'),
    (ObjectAsState, STATE, 'not JSON serializable'),
    (StateThatChanges, STATE, 'changes on its way through JSON'),
    (ForgetsItsOwnState, STATE, 'a resume token of another life'),
    (AsciiOnly, TEXT, "'ascii' codec can't encode"),
    (BrokenJson, SCHEMA, 'Expecting value'),
    (OtherFields, SCHEMA, 'no text for summary'),
    (NoObject, SCHEMA, 'the answer is no object'),
    (NothingToSay, SCHEMA, 'the summary is blank'),
    (TakesNoEmptySchema, EMPTY, 'required'),
    (Blank, EMPTY, 'the answer is blank'),
    (Blocks, BESIDE, r'it blocked the event loop for 0\.[7-9]'),
    (Stubborn, CUT_OFF, 'it cannot be cut off'),
    (InAThread, CUT_OFF, 'it cannot be cut off'),
]


@pytest.mark.filterwarnings('ignore:coroutine .* was never awaited:RuntimeWarning')
@pytest.mark.parametrize(
    ('broken', 'test', 'why'),
    BROKEN,
    ids=[f'{broken.__name__}-{test}' for broken, test, _ in BROKEN],
)
def test_a_broken_one_fails(broken: Callable[[], TurnRunner], test: str, why: str) -> None:
    """A runner that breaks one promise fails the test of that promise, and is told why."""

    class Contract(TurnRunnerContract):
        answer_seconds = 0.05 if broken in (Stubborn, InAThread, Hangs) else 5.0

        def make_runner(self) -> TurnRunner:
            return broken()

    Stubborn.let_go = InAThread.let_go = False
    try:
        with pytest.raises(Exception, match=why):
            getattr(Contract(), test)()
    finally:
        Stubborn.let_go = InAThread.let_go = True


def test_every_promise_can_be_broken() -> None:
    """Each test of the suite is failed by one of these runners, so that none of them is empty."""
    tests = {name for name in dir(TurnRunnerContract) if name.startswith('test_')}
    assert tests == {test for _, test, _ in BROKEN}
