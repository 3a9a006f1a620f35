"""Tools: told to a model by their signature, called with what fits it, and whatever goes wrong is told to the model."""

import asyncio
import functools
import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import anyio
import msgspec
import pytest

from trading_agent.conversation import Agent, Session, Tool
from trading_agent.errors import BackendError, InvalidInput, TooManyRounds
from trading_agent.messages import AssistantMessage, ToolResultMessage, Usage, UserMessage
from trading_agent.providers.provider import Stopped
from trading_agent.testing.provider import ScriptedProvider, Step
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnAnswered, UsageCounted

USE = Stopped('tool_use', 'm1')


class Leg(msgspec.Struct):
    symbol: str
    lots: int = 1


async def order(  # noqa: D417 - one parameter is described by nobody
    leg: Leg,
    side: Literal['buy', 'sell'],
    day: date | None = None,
    note: Annotated[str, msgspec.Meta(description='its own words')] = '',
) -> dict[str, Any]:
    """Places an order.

    It goes to the exchange at once.

    Args:
        leg: What to trade; the lots
            are whole: no halves.
        side (str): Which way.
        note: never seen
        other: no parameter

    Returns:
        The order's number.
    """
    return {'leg': leg, 'side': side, 'day': day, 'note': note}


async def price(symbol: str) -> str:
    """Returns the last price."""
    return f'{symbol} 41.20'


async def fail(how: str) -> str:
    """Fails."""
    raise ValueError(how)


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[Step]:
    """Returns an answer that asks for tools, with the ids 1, 2 and so on."""
    return [*(ToolCalled(str(at), name, given) for at, (name, given) in enumerate(wanted, 1)), USE]


def session_of(*answers: str | list[Step], tools: Any = (order, price, fail), **options: Any) -> Session:  # noqa: ANN401
    """Returns a session with tools, and a provider that answers this."""
    return Agent(ScriptedProvider(*answers), tools=tools, **options).session()


async def told(name: str, arguments: dict[str, Any], *tools: Any) -> ToolResultMessage:  # noqa: ANN401
    """Returns what a model is told when it calls a tool."""
    session = session_of(calls((name, arguments)), 'done', tools=tools or (order, price, fail))
    message = (await session.run_async('go')).messages[2]
    assert isinstance(message, ToolResultMessage)
    return message


# -- what a model is told of a tool ----------------------------------------------------------------------------


async def test_a_tool_is_told_by_its_signature_and_docstring() -> None:
    """Name, description, each parameter's type, default and description reach the provider as a JSON Schema."""
    provider = ScriptedProvider('fine')
    await Agent(provider, tools=[order]).session().run_async('go')
    (spec,) = provider.requests[0].tools
    assert spec.name == 'order'
    assert spec.description == 'Places an order.\n\nIt goes to the exchange at once.'
    properties = spec.parameters['properties']
    assert list(properties) == ['leg', 'side', 'day', 'note']
    assert properties['leg']['description'] == 'What to trade; the lots are whole: no halves.'
    assert properties['side'] == {'enum': ['buy', 'sell'], 'description': 'Which way.'}
    assert properties['note'] == {'type': 'string', 'description': 'its own words', 'default': ''}
    assert properties['day']['default'] is None
    assert spec.parameters['type'] == 'object'
    assert spec.parameters['required'] == ['leg', 'side']
    assert spec.parameters['additionalProperties'] is False
    assert spec.parameters['$defs']['Leg']['required'] == ['symbol']
    json.dumps(spec.parameters)


class Counter:
    """An object whose method is a tool."""

    def __init__(self) -> None:
        self.count = 0

    async def up(self, by: int = 1) -> int:
        """Counts."""
        self.count += by
        return self.count


async def test_what_else_can_be_a_tool() -> None:
    """A method, a partial, a function without parameters, and a Tool made by hand, which its own schema checks."""
    counter = Counter()

    async def now() -> str:
        return 'noon'

    async def loose(**given: Any) -> object:  # noqa: ANN401
        return given

    schema = {'type': 'object', 'properties': {'n': {'type': 'integer'}}, 'required': ['n']}
    by_hand = Tool('any-thing', 'Takes n.', schema, loose)
    buy = Tool.of(functools.partial(order, side='buy'))
    tools = (counter.up, now, by_hand, buy)
    assert (await told('up', {'by': 2}, *tools)).content == '2'
    assert (await told('up', {}, *tools)).content == '3'
    assert (await told('now', {}, *tools)).content == 'noon'
    assert (await told('any-thing', {'n': 1, 'm': [2]}, *tools)).content == '{"n":1,"m":[2]}'
    refused = await told('any-thing', {'n': 'x'}, *tools)
    assert (refused.is_error, refused.content) == (True, "ValueError: n: 'x' is not of type 'integer'")
    assert (buy.name, buy.parameters['required']) == ('order', ['leg'])
    assert Tool.of(buy) is buy


def sync(symbol: str) -> str:
    """Blocks."""
    return symbol


async def untyped(symbol) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001, D103
    return str(symbol)


async def starred(*symbols: str) -> str:  # noqa: D103
    return ' '.join(symbols)


async def positional(symbol: str, /) -> str:  # noqa: D103
    return symbol


async def unknown(symbol: 'Nowhere') -> str:  # type: ignore[name-defined]  # noqa: F821, D103
    return str(symbol)


async def odd(symbol: complex) -> str:  # noqa: D103
    return str(symbol)


@pytest.mark.parametrize(
    ('tool', 'why'),
    [
        (sync, "the tool 'sync' is no async function"),
        (print, "the tool 'print' is no async function"),
        (5, 'the tool 5 is no async function'),
        (untyped, "the parameter 'symbol' of the tool 'untyped' has no type"),
        (starred, r"the tool 'starred' takes \*symbols"),
        (positional, "the tool 'positional' takes"),
        (unknown, "parameters of the tool 'unknown' cannot be told: .*Nowhere"),
        (odd, "parameters of the tool 'odd' cannot be told to a model: .*complex"),
        (lambda: Tool('two words', '', {}, price), "not 'two words'"),
        (lambda: Tool('x', '', {'type': 'nothing'}, price), 'no JSON Schema'),
        (lambda: Tool('x', '', {}, sync), 'no async function'),  # type: ignore[arg-type]
    ],
)
def test_what_can_be_no_tool(tool: Any, why: str) -> None:  # noqa: ANN401
    """A sync function, and one whose parameters a model cannot be told, is refused when the agent is made."""
    with pytest.raises(InvalidInput, match=why):
        Agent(tools=[tool() if getattr(tool, '__name__', '') == '<lambda>' else tool])


def test_two_tools_of_one_name() -> None:
    """A model could not tell them apart."""
    with pytest.raises(InvalidInput, match="two tools are named 'price'"):
        Agent(tools=[price, Tool('price', '', {}, order)])


# -- a call ----------------------------------------------------------------------------------------------------


async def test_a_turn_with_tools() -> None:
    """Calls are run one after the other and in order, the model is asked again with the results, and all is kept."""
    running, most, order_of = 0, 0, []

    async def slow(number: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order_of.append(number)
        await anyio.sleep(0.02 / number)
        running -= 1
        return f'result {number}'

    provider = ScriptedProvider(
        [TextPiece('Let me see.'), UsageCounted(5, 1), *calls(('slow', {'number': 1}), ('slow', {'number': 2}))],
        calls(('slow', {'number': 3})),
        [TextPiece('All '), TextPiece('done.'), UsageCounted(7, 2), Stopped('end_turn', 'm2')],
    )
    session = Agent(provider, tools=[slow]).session()
    events = [event async for event in session.events('go')]
    assert events == [
        TextPiece('Let me see.'),
        UsageCounted(5, 1),
        ToolCalled('1', 'slow', {'number': 1}),
        ToolCalled('2', 'slow', {'number': 2}),
        ToolReturned('1', 'result 1'),
        ToolReturned('2', 'result 2'),
        ToolCalled('1', 'slow', {'number': 3}),
        ToolReturned('1', 'result 3'),
        TextPiece('All '),
        TextPiece('done.'),
        UsageCounted(7, 2),
        TurnAnswered('All done.', model='m2', stop_reason='end_turn'),
    ]
    assert (most, order_of) == (1, [1, 2, 3])
    user, asked, first, second, again, third, answer = session.history()
    assert isinstance(user, UserMessage)
    assert isinstance(asked, AssistantMessage)
    assert (asked.text, [call.id for call in asked.calls], asked.stop_reason) == ('Let me see.', ['1', '2'], 'tool_use')
    assert (asked.model, asked.usage) == ('m1', Usage(5, 1))
    assert [getattr(result, 'tool_call_id', None) for result in (first, second, third)] == ['1', '2', '1']
    assert isinstance(again, AssistantMessage)
    assert isinstance(answer, AssistantMessage)
    assert (answer.text, answer.usage) == ('All done.', Usage(7, 2))
    assert [len(request.messages) for request in provider.requests] == [1, 4, 6]
    assert provider.requests[1].messages[2:] == [first, second]
    assert session.token_usage['total_tokens'] == 15


@pytest.mark.parametrize(
    ('name', 'arguments', 'content'),
    [
        ('price', {'symbol': 'ABC'}, 'ABC 41.20'),
        (
            'order',
            {'leg': {'symbol': 'ABC'}, 'side': 'buy', 'day': '2026-10-19'},
            '{"leg":{"symbol":"ABC","lots":1},"side":"buy","day":"2026-10-19","note":""}',
        ),
    ],
)
async def test_a_result_is_text_or_json(name: str, arguments: dict[str, Any], content: str) -> None:
    """Text is told as it is, everything else as JSON; arguments arrive in the types of the parameters."""
    message = await told(name, arguments)
    assert (message.content, message.is_error) == (content, False)
    assert (message.tool_call_id, message.name) == ('1', name)
    assert message.timestamp > 1.7e9


class Quiet(Exception):
    """Says nothing."""


async def raise_quiet() -> None:  # noqa: D103
    raise Quiet


async def be_cancelled() -> None:  # noqa: D103
    raise asyncio.CancelledError


async def give_object() -> object:  # noqa: D103
    return object()


async def talk_nonsense() -> str:  # noqa: D103
    return 'a\ud800'


@pytest.mark.parametrize(
    ('name', 'arguments', 'content'),
    [
        ('fail', {'how': 'no margin'}, 'ValueError: no margin'),
        ('fail', {'how': 'x' * 100_000}, f'ValueError: {"x" * 4000}'),
        ('raise_quiet', {}, 'Quiet'),
        ('be_cancelled', {}, 'CancelledError'),
        ('give_object', {}, 'TypeError: Encoding objects of type object is unsupported'),
        ('nowhere', {}, "LookupError: there is no tool 'nowhere'; there are: order, price, fail, "),
        ('price', {}, 'ValidationError: Object missing required field `symbol`'),
        ('price', {'symbol': 5}, 'ValidationError: Expected `str`, got `int` - at `$.symbol`'),
        ('price', {'symbol': 'A', 'x': 1}, 'ValidationError: Object contains unknown field `x`'),
        ('order', {'leg': {'symbol': 'A'}, 'side': 'hold'}, "ValidationError: Invalid enum value 'hold'"),
    ],
)
async def test_what_goes_wrong_is_told_to_the_model(name: str, arguments: dict[str, Any], content: str) -> None:
    """It becomes a result that says the kind of error and its words, never a traceback, and the turn goes on."""
    tools = (order, price, fail, raise_quiet, be_cancelled, give_object)
    message = await told(name, arguments, *tools)
    assert message.is_error
    assert message.content.startswith(content)
    assert len(message.content) <= 4020
    assert 'Traceback' not in message.content


async def test_a_result_is_storable() -> None:
    """A lone surrogate becomes U+FFFD."""
    assert (await told('talk_nonsense', {}, talk_nonsense)).content == 'a\ufffd'


async def test_a_tool_cannot_change_the_history() -> None:
    """What a function, or who is told of a call, does to its arguments stays there."""

    async def spoil(items: list[dict[str, int]], given: Any) -> str:  # noqa: ANN401
        items[0]['a'] = 2
        given['b'].append(3)
        return 'done'

    arguments: dict[str, Any] = {'items': [{'a': 1}], 'given': {'b': []}}
    session = session_of(calls(('spoil', arguments)), 'done', tools=[spoil])
    async for event in session.events('go'):
        if isinstance(event, ToolCalled):
            event.arguments['given'].clear()
        elif isinstance(event, ToolReturned):
            assert not event.is_error
    asked = session.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert asked.calls[0].arguments == {'items': [{'a': 1}], 'given': {'b': []}} == arguments


async def test_cancellation_goes_through_a_tool() -> None:
    """A turn that is cancelled while a tool runs ends, and nothing of it is kept."""
    cancelled = []

    async def hang() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise

    session = session_of(calls(('hang', {})), tools=[hang])
    with anyio.move_on_after(0.02) as scope:
        await session.run_async('go')
    assert (scope.cancelled_caught, cancelled, session.history()) == (True, [True], [])


async def test_a_model_that_never_answers() -> None:
    """After the most rounds the turn fails, as a backend's failure, and the history is as it was."""
    session = session_of(*[calls(('price', {'symbol': 'A'}))] * 3, 'late', max_rounds=3)
    with pytest.raises(TooManyRounds, match='after 3 requests') as failure:
        await session.run_async('go')
    assert isinstance(failure.value, BackendError)
    assert session.history() == []
    assert (await session.run_async('again')).text == 'late'


async def test_a_turn_that_fails_after_its_tools() -> None:
    """A stream that is cut after a call leaves neither call nor result behind."""
    session = session_of(calls(('price', {'symbol': 'A'})), [TextPiece('so')])
    with pytest.raises(BackendError, match='cut'):
        await session.run_async('go')
    assert session.history() == []


def test_tools_by_the_sync_way() -> None:
    """`run` and `stream` call tools too; the stream has the text of all rounds, its response the last answer's."""
    asking: list[Step] = [TextPiece('One moment. '), *calls(('price', {'symbol': 'A'}))]
    session = session_of(asking, 'It is 41.20.', asking, 'Still.')
    assert session.run('price?').text == 'It is 41.20.'
    stream = session.stream('and now?')
    assert list(stream) == ['One moment. ', 'Still.']
    assert stream.response.text == 'Still.'
    assert [type(message).__name__ for message in stream.response.messages] == [
        'UserMessage',
        'AssistantMessage',
        'ToolResultMessage',
        'AssistantMessage',
    ]


@dataclass
class Position:
    symbol: str
    lots: int


async def test_a_dataclass_and_lists_of_them() -> None:
    """Parameters and results may be dataclasses, also in lists and dictionaries."""

    async def net(positions: list[Position], limits: dict[str, int]) -> list[Position]:
        return [Position(each.symbol, min(each.lots, limits[each.symbol])) for each in positions]

    message = await told('net', {'positions': [{'symbol': 'A', 'lots': 9}], 'limits': {'A': 3}}, net)
    assert (message.content, message.is_error) == ('[{"symbol":"A","lots":3}]', False)


@pytest.mark.parametrize('default', [None, 3, 'x', [1], {'a': 1}, Leg('A')])
async def test_the_function_fills_in_its_defaults(default: Any) -> None:  # noqa: ANN401
    """An argument that was left out is the function's own default, whatever that is."""
    seen: list[Any] = []

    async def take(given: Any = default) -> None:  # noqa: ANN401
        seen.append(given)

    assert not (await told('take', {}, take)).is_error
    assert seen[0] is default


def test_a_docstring_without_sections() -> None:
    """Without `Args:`, and without a docstring at all, there is a description or an empty one."""
    assert Tool.of(price).description == 'Returns the last price.'
    assert Tool.of(Counter().up).parameters['properties']['by'] == {'type': 'integer', 'default': 1}
    assert Tool.of(give_object).description == ''
