"""Answers by a schema: whatever describes it, what is wrong is told to the model once, and then to the caller."""

import dataclasses
import json
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent.conversation import Agent, Session
from trading_agent.conversation.schema import AnswerSchema, schema_of
from trading_agent.errors import BackendError, InvalidAnswer, InvalidInput
from trading_agent.messages import AssistantMessage, UserMessage
from trading_agent.providers.provider import Stopped
from trading_agent.testing.provider import ScriptedProvider, Step
from trading_agent.turn_events import TextPiece, ToolCalled, UsageCounted

SCHEMA = {
    'type': 'object',
    'properties': {'symbol': {'type': 'string', 'minLength': 1}, 'lots': {'type': 'integer', 'minimum': 1}},
    'required': ['symbol', 'lots'],
    'additionalProperties': False,
}
GOOD = '{"symbol": "ABC", "lots": 2}'
BAD = '{"symbol": "ABC", "lots": 0}'


class Order(msgspec.Struct, forbid_unknown_fields=True):
    symbol: Annotated[str, msgspec.Meta(min_length=1)]
    lots: Annotated[int, msgspec.Meta(ge=1)]


@dataclasses.dataclass
class DataOrder:
    symbol: str
    lots: int


class ModelLike:
    """What a pydantic model has of what is needed."""

    def __init__(self, symbol: str, lots: int) -> None:
        self.symbol, self.lots = symbol, lots

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA

    @classmethod
    def model_validate_json(cls, text: str) -> 'ModelLike':
        data = json.loads(text)
        if data['lots'] < 1:
            raise ValueError('lots\n  too few\n    For further information visit https://errors.example/v/too_few')
        return cls(**data)


def session_of(*answers: str | list[Step], **options: Any) -> tuple[Session, ScriptedProvider]:  # noqa: ANN401
    """Returns a session with a provider that answers this."""
    provider = ScriptedProvider(*answers)
    return Agent(provider, **options).session(), provider


# -- what a schema can be --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('schema', 'parsed'),
    [
        (SCHEMA, {'symbol': 'ABC', 'lots': 2}),
        (Order, Order('ABC', 2)),
        (DataOrder, DataOrder('ABC', 2)),
        (dict[str, str | int], {'symbol': 'ABC', 'lots': 2}),
        (Order | None, Order('ABC', 2)),
    ],
)
def test_an_answer_is_read_by_its_schema(schema: Any, parsed: object) -> None:  # noqa: ANN401
    """The provider gets a JSON Schema, `parsed` is what the schema makes of the answer, and the text is there too."""
    session, provider = session_of(GOOD)
    response = session.json('order?', schema=schema)
    assert (response.parsed, response.text) == (parsed, GOOD)
    sent = provider.requests[0].schema
    assert sent is not None
    json.dumps(sent)
    assert [type(message) for message in session.history()] == [UserMessage, AssistantMessage]
    assert session.messages == response.messages


async def test_a_list_is_an_answer_too() -> None:
    """Any type that msgspec decodes will do, and settings go with it."""
    session, provider = session_of('[1, 2]')
    response = await session.json_async('x', schema=list[int], temperature=0.1, max_tokens=5, metadata={'a': 1})
    assert response.parsed == [1, 2]
    request = provider.requests[0]
    assert request.schema == {'type': 'array', 'items': {'type': 'integer'}}
    assert (request.temperature, request.max_tokens, request.metadata) == (0.1, 5, {'a': 1})


def test_a_pydantic_model_by_what_it_has() -> None:
    """A class with pydantic's two methods is asked for its schema and reads the answer; its error is told in short."""
    session, provider = session_of(BAD, GOOD)
    response = session.json('order?', schema=ModelLike)
    assert isinstance(response.parsed, ModelLike)
    assert response.parsed.lots == 2
    assert provider.requests[0].schema == SCHEMA
    again = provider.requests[1].messages[-1]
    assert isinstance(again, UserMessage)
    assert 'lots\n  too few' in again.content
    assert 'further information' not in again.content


def test_a_pydantic_model() -> None:
    """The same with pydantic itself, where it is installed."""
    pydantic = pytest.importorskip('pydantic')
    model = pydantic.create_model('Order', symbol=(str, ...), lots=(int, pydantic.Field(ge=1)))
    session, _ = session_of(BAD, GOOD)
    assert session.json('order?', schema=model).parsed == model(symbol='ABC', lots=2)


def test_pydantic_and_jsonschema_are_imported_by_who_uses_them() -> None:
    """A session, its tools and a struct as a schema import neither."""
    program = """
import sys, msgspec
from trading_agent.conversation import Agent
class Note(msgspec.Struct):
    summary: str
async def price(symbol: str) -> str:
    return symbol
print(Agent(tools=[price]).session().json('Sum it up.', schema=Note).parsed.summary)
print([name for name in ('jsonschema', 'referencing', 'pydantic') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    assert done.stdout == 'No exchanges.\n[]\n'


@pytest.mark.parametrize(
    ('schema', 'why'),
    [
        ({'type': 'strnig'}, r'no JSON Schema: \$\.type: '),
        ({'properties': 3}, r'no JSON Schema: \$\.properties: '),
        ({'properties': {'a': {'pattern': '('}}}, r"no JSON Schema: \$\.properties\.a\.pattern: '\('"),
        ({'default': object()}, 'no JSON Schema: Encoding objects of type object'),
        ({'$ref': '#/$defs/Nowhere'}, "refers to '/\\$defs/Nowhere', which is not in it"),
        ({'$ref': 'https://example.org/order.json'}, "refers to 'https://example.org/order.json'"),
        ({'anyOf': [{'items': {'$ref': 'file:///etc/passwd'}}]}, "refers to 'file:///etc/passwd'"),
        ({'$ref': 'https://json-schema.org/draft/2020-12/schema'}, 'refers to'),
        (None, 'there is no schema'),
        ('Order', "'Order' is no schema"),
        (5, '5 is no schema'),
        (Order('A', 1), 'is no schema'),
        (complex, 'is no schema'),
    ],
)
@pytest.mark.parametrize('in_a_loop', [False, True])
def test_what_is_no_schema(
    schema: Any,  # noqa: ANN401
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    in_a_loop: bool,
) -> None:
    """It is refused before the model is asked; a reference that leads out of it is not followed."""
    session, provider = session_of(GOOD)
    connected: list[object] = []
    monkeypatch.setattr(socket.socket, 'connect', lambda *to: connected.append(to))
    by_loop = partial(anyio.run, partial(session.json_async, 'x', schema=schema))
    with pytest.raises(InvalidInput, match=why):
        (by_loop if in_a_loop else partial(session.json, 'x', schema=schema))()
    assert (provider.requests, connected, session.history()) == ([], [], [])


def test_references_within_a_schema() -> None:
    """`$defs`, `$id` and `$anchor` are followed; a `$ref` in an example or an enumeration is a value like another."""
    schema = {
        '$id': 'https://example.org/order',
        '$defs': {
            'leg': {'$id': 'leg', '$defs': {'n': {'type': 'integer'}}, 'properties': {'n': {'$ref': '#/$defs/n'}}},
            'word': {'$anchor': 'word', 'type': 'string'},
        },
        'properties': {'leg': {'$ref': 'leg'}, 'word': {'$ref': '#word'}, '$ref': {'const': {'$ref': 'x'}}},
        'examples': [{'$ref': 'nowhere'}],
    }
    read = AnswerSchema.of(schema).read
    assert read('{"leg": {"n": 1}, "word": "a", "$ref": {"$ref": "x"}}')['leg'] == {'n': 1}
    with pytest.raises(InvalidAnswer, match=r"leg\.n: 'x' is not of type 'integer'; the answer has no text for word"):
        read('{"leg": {"n": "x"}, "word": 5}')


def test_a_schema_that_refers_to_itself_alone() -> None:
    """It can never be applied, which is told as the schema's fault and not as the model's."""
    session, _ = session_of('{}')
    with pytest.raises(InvalidInput, match='cannot be applied'):
        session.json('x', schema={'$ref': '#/$defs/a', '$defs': {'a': {'$ref': '#/$defs/a'}}})
    assert session.history() == []


class Tree(msgspec.Struct):
    children: list['Tree'] = []


class Legs(msgspec.Struct):
    legs: list[Order]


def test_the_type_itself_is_the_root_of_its_schema() -> None:
    """Providers want an object at the root and not a reference; what it refers to is under `$defs`."""
    assert schema_of(Order) == {
        'title': 'Order',
        'type': 'object',
        'properties': {'symbol': {'type': 'string', 'minLength': 1}, 'lots': {'type': 'integer', 'minimum': 1}},
        'required': ['symbol', 'lots'],
        'additionalProperties': False,
    }
    assert list(schema_of(Legs)['$defs']) == ['Order']
    assert list(schema_of(Tree)['$defs']) == ['Tree']
    assert AnswerSchema.of(schema_of(Tree)).read('{"children": [{"children": []}]}') == {'children': [{'children': []}]}


# -- what an answer can be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'answer',
    [GOOD, f'  {GOOD}\n', f'```json\n{GOOD}\n```', f'```\n{GOOD}\n```\n', f'\n```JSON\r\n{GOOD}\n  ```'],
)
@pytest.mark.parametrize('schema', [SCHEMA, Order, ModelLike])
def test_an_answer_may_stand_in_a_fence(answer: str, schema: Any) -> None:  # noqa: ANN401
    """White space and a fence of back-ticks around the JSON are no mistake."""
    session, provider = session_of(answer)
    assert session.json('x', schema=schema).parsed
    assert len(provider.requests) == 1


UNFIT = [
    ('Sure! Here is your JSON.', 'the answer is no JSON object: '),
    (f'Here: {GOOD}', 'the answer is no JSON object: '),
    ('', 'the answer is no JSON object: '),
    ('[]', r'the answer is no JSON object: \[\]'),
    ('"x"', 'the answer is no JSON object: "x"'),
    (GOOD[:-1], 'the answer is no JSON object: '),
    ('[' * 100_000, 'the answer is no JSON object: '),
    ('\ud800', 'the answer is no JSON object: '),
    ('{}', 'the answer lacks symbol, lots'),
    ('{"symbol": 5, "lots": 1}', 'the answer has no text for symbol'),
    (BAD, 'lots: 0 is less than the minimum of 1'),
    ('{"symbol": "", "lots": 1, "x": 2}', r"the answer: Additional properties.*; symbol: '' should be non-empty"),
]


@pytest.mark.parametrize(('answer', 'why'), UNFIT)
def test_what_is_wrong_is_told_in_words(answer: str, why: str) -> None:
    """An answer that is no JSON, or lacks or breaks something, is an error that says what, where and in short."""
    with pytest.raises(InvalidAnswer, match=why) as failure:
        AnswerSchema.of(SCHEMA).read(answer)
    assert failure.value.text == answer
    assert failure.value.problem == str(failure.value)
    assert len(failure.value.problem) < 3000


@pytest.mark.parametrize(
    ('answer', 'why'),
    [
        ('no', 'the answer is no JSON: '),
        ('[' * 100_000, 'the answer does not fit: Expected `object`, got `array`'),
        ('\ud800', 'the answer is no JSON: '),
        ('{}', 'the answer does not fit: Object missing required field `symbol`'),
        (BAD, r'the answer does not fit: Expected `int` >= 1 - at `\$.lots`'),
    ],
)
def test_what_does_not_fit_a_struct(answer: str, why: str) -> None:
    """The same with a type."""
    with pytest.raises(InvalidAnswer, match=why):
        AnswerSchema.of(Order).read(answer)


def test_very_long_nonsense_is_told_in_short() -> None:
    """Neither a long value nor many mistakes make a long message."""
    schema = {'type': 'object', 'properties': {str(number): {'type': 'integer'} for number in range(50)}}
    answer = json.dumps({str(number): 'x' * 1000 for number in range(50)})
    with pytest.raises(InvalidAnswer, match=r'and 45 more$') as failure:
        AnswerSchema.of(schema).read(answer)
    assert len(failure.value.problem) < 2000


def test_a_lenient_schema_lets_what_is_too_much_pass() -> None:
    """Texts that are too long and fields that are not known pass, and nothing else does."""
    schema = {**SCHEMA, 'properties': {**SCHEMA['properties'], 'symbol': {'type': 'string', 'maxLength': 2}}}  # type: ignore[dict-item]
    read = AnswerSchema.of(schema, lenient=True).read
    assert read('{"symbol": "ABC", "lots": 1, "x": 2}')['symbol'] == 'ABC'
    with pytest.raises(InvalidAnswer, match='lots'):
        read('{"symbol": "ABC", "lots": 0}')
    with pytest.raises(InvalidAnswer):
        AnswerSchema.of(schema).read('{"symbol": "ABC", "lots": 1}')


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50)
@given(ANY_JSON)
def test_any_json_is_read_or_refused(value: object) -> None:
    """Whatever a model answers, a schema without rules gives the value itself, and another one it or an error."""
    text = json.dumps(value, ensure_ascii=False)
    assert AnswerSchema.of({}).read(text) == value
    with suppress(InvalidAnswer):
        assert AnswerSchema.of(SCHEMA).read(text) == value


# -- the second try --------------------------------------------------------------------------------------------


async def test_a_second_try_is_asked_for() -> None:
    """The model is told what is wrong, answers again, and all four messages are the turn."""
    first: list[Step] = [TextPiece(BAD), UsageCounted(10, 1), Stopped('end_turn', 'm')]
    second: list[Step] = [TextPiece(GOOD), UsageCounted(20, 2), Stopped('end_turn', 'm')]
    session, provider = session_of(first, second)
    response = await session.json_async('order?', schema=SCHEMA)
    assert (response.parsed, response.text) == ({'symbol': 'ABC', 'lots': 2}, GOOD)
    assert (response.usage.input_tokens, session.token_usage['total_tokens']) == (30, 33)
    user, bad, again, good = session.history()
    assert response.messages == [user, bad, again, good]
    assert isinstance(again, UserMessage)
    assert 'lots: 0 is less than the minimum of 1' in again.content
    assert isinstance(bad, AssistantMessage)
    assert bad.text == BAD
    assert provider.requests[1].messages == [user, bad, again]
    assert provider.requests[1].schema == SCHEMA


@pytest.mark.parametrize('schema', [SCHEMA, Order, ModelLike])
def test_after_the_second_try_it_is_an_error(schema: Any) -> None:  # noqa: ANN401
    """It carries the answer and what is wrong, counts as the backend's, and leaves the history as it was."""
    session, provider = session_of('before', BAD, BAD, 'after')
    session.run('x')
    before = session.history()
    with pytest.raises(InvalidAnswer) as failure:
        session.json('order?', schema=schema)
    assert isinstance(failure.value, BackendError)
    assert failure.value.text == BAD
    assert 'lots' in failure.value.problem
    assert session.history() == before
    assert len(provider.requests) == 3
    assert session.run('y').text == 'after'


def test_an_answer_that_was_cut_off_by_its_length() -> None:
    """It is invalid by nature, and the second try may be shorter; what it stopped for is told."""
    cut: list[Step] = [TextPiece(GOOD[:10]), Stopped('max_tokens', 'm')]
    session, _ = session_of(cut, GOOD)
    assert session.json('order?', schema=Order).parsed == Order('ABC', 2)
    first = session.messages[1]
    assert isinstance(first, AssistantMessage)
    assert first.stop_reason == 'max_tokens'


async def test_tools_may_be_called_before_the_answer() -> None:
    """The answer alone is read by the schema, not what is said with a call."""

    async def price(symbol: str) -> str:
        return f'{symbol} 41.20'

    asking: list[Step] = [TextPiece('Let me see.'), ToolCalled('1', 'price', {'symbol': 'A'}), Stopped('tool_use')]
    session, provider = session_of(asking, GOOD, tools=[price])
    assert (await session.json_async('order?', schema=Order)).parsed == Order('ABC', 2)
    assert [request.schema is not None for request in provider.requests] == [True, True]


# -- the offline provider --------------------------------------------------------------------------------------


class Note(msgspec.Struct, forbid_unknown_fields=True):
    summary: str
    memory: str
    symbols: list[str]
    best: Order | None
    lots: Annotated[int, msgspec.Meta(ge=1)]
    reasons: str = ''


def test_offline_fills_a_schema_from_what_it_was_told() -> None:
    """Summary and memory are made of the conversation and its system; the rest is as empty as the schema allows."""
    session = Agent('offline', system='# Memory\n').session()
    session.run('Never hold options overnight.')
    note = session.json('Sum it up.', schema=Note).parsed
    assert isinstance(note, Note)
    assert 'Never hold options overnight.' in note.summary
    assert note.memory.startswith('# Memory\n')
    assert '- Never hold options overnight.' in note.memory
    assert (note.symbols, note.best, note.lots) == ([], None, 1)
    assert 'No model was asked' in note.reasons
    assert session.json('And as a list?', schema=list[int]).parsed == []


BOUNDS = st.integers(-5, 5)
SCALARS = st.one_of(
    st.builds(lambda low: {'type': 'integer', 'minimum': low}, BOUNDS),
    st.builds(lambda low: {'type': 'number', 'exclusiveMinimum': low}, BOUNDS),
    st.builds(lambda high: {'type': 'number', 'maximum': high}, BOUNDS),
    st.builds(lambda high: {'type': 'integer', 'exclusiveMaximum': high}, BOUNDS),
    st.builds(lambda size: {'type': 'string', 'minLength': size}, st.integers(0, 9)),
    st.builds(lambda values: {'enum': values}, st.lists(st.text() | st.integers(), min_size=1)),
    st.builds(lambda value: {'const': value}, st.text() | st.booleans()),
    st.sampled_from([{'type': 'boolean'}, {'type': 'null'}, {'type': ['string', 'null']}]),
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda item, size: {'type': 'array', 'items': item, 'minItems': size}, inner, st.integers(0, 3)),
        st.builds(
            lambda parts: {'type': 'object', 'properties': parts, 'required': list(parts)},
            st.dictionaries(st.sampled_from(['summary', 'reasons', 'x', 'y']), inner, max_size=3),
        ),
        st.builds(lambda other: {'anyOf': [other, {'type': 'null'}]}, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(SCHEMAS)
def test_offline_fulfils_what_it_can(schema: dict[str, Any]) -> None:
    """Types, enumerations, lengths and bounds are kept to, at the root and within, four levels deep."""
    response = Agent('offline').session().json('Sum it up.', schema=schema)
    assert response.parsed == json.loads(response.text)
    assert len(response.messages) == 2, 'it needed no second try'


@pytest.mark.parametrize('kind', [date, UUID, Decimal, Annotated[datetime, msgspec.Meta(tz=True)]])
def test_offline_knows_the_usual_formats(kind: Any) -> None:  # noqa: ANN401
    """A text in a format of its own is the emptiest one of that format."""
    schema = msgspec.defstruct('When', [('at', kind)])
    assert Agent('offline').session().json('x', schema=schema).parsed.at is not None
