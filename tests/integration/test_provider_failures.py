"""Everything that goes wrong between a provider and its API, on both providers and on real sockets."""

import asyncio
import gc
import socket
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from llmock_server import KEY, PROVIDERS, ApiProvider, Mock, answered, asking, mock_of, require, running, text_of, told
from raw_http import Act, Raw, answer, hang_up, reset, send_garbage, send_half, serving, stay, stream

from trading_agent.errors import (
    BackendBusy,
    BackendDown,
    BackendError,
    ContextTooSmall,
    InvalidAnswer,
    TradingAgentError,
    TurnRefused,
)
from trading_agent.messages import UserMessage
from trading_agent.providers.provider import Stopped
from trading_agent.turn_events import TextPiece, ToolCalled, TurnEvent, UsageCounted

if TYPE_CHECKING:
    from llmock.testing import LLMockServer

PRIVATE = 'Buy nine thousand shares of Infosys before the others hear of it.'

# A beginning of an answer, as each API streams it.
BEGUN: dict[str, list[object]] = {
    'anthropic': [
        {'type': 'message_start', 'message': {'model': 'm', 'usage': {'input_tokens': 5, 'output_tokens': 1}}},
        {'type': 'content_block_start', 'index': 0, 'content_block': {'type': 'text', 'text': ''}},
        {'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'text_delta', 'text': 'Infosys '}},
    ],
    'openai': [{'model': 'm', 'choices': [{'index': 0, 'delta': {'content': 'Infosys '}, 'finish_reason': None}]}],
}
ENDED: dict[str, list[object]] = {
    'anthropic': [
        {'type': 'content_block_stop', 'index': 0},
        {'type': 'message_delta', 'delta': {'stop_reason': 'end_turn'}, 'usage': {'output_tokens': 3}},
        {'type': 'message_stop'},
    ],
    'openai': [{'model': 'm', 'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]}, 'data: [DONE]\n\n'],
}


@pytest.fixture(scope='module')
def server() -> Iterator['LLMockServer']:
    """One llmock for all of these tests."""
    with running() as started:
        yield started


@pytest.fixture(params=['anthropic', 'openai'])
def kind(request: pytest.FixtureRequest) -> str:
    """Whose API."""
    require('anthropic', 'openai')
    return str(request.param)


@pytest.fixture
def mock(server: 'LLMockServer', kind: str) -> Mock:
    """The llmock as one of the APIs."""
    return mock_of(server, kind)


@asynccontextmanager
async def closing(provider: ApiProvider) -> AsyncIterator[ApiProvider]:
    """Closes a provider at the end."""
    try:
        yield provider
    finally:
        await provider.aclose()


async def failures_of(kind: str, *script: Act) -> list[TradingAgentError]:
    """Returns how a provider fails, time after time, at a server that does this."""
    failures = []
    async with serving(*script) as raw, closing(PROVIDERS[kind]('m', KEY, raw.url)) as provider:
        for _ in script:
            with pytest.raises(TradingAgentError) as raised:
                await told(provider, asking(PRIVATE))
            failures.append(raised.value)
    return failures


async def failure_of(kind: str, act: Act, into: list[TurnEvent] | None = None) -> TradingAgentError:
    """Returns how a provider fails at a server that does this; `into` has what it yielded before."""
    async with serving(act) as raw, closing(PROVIDERS[kind]('m', KEY, raw.url)) as provider:
        with pytest.raises(TradingAgentError) as raised:
            await told(provider, asking(PRIVATE), into)
    return raised.value


def without_counts(events: list[TurnEvent]) -> list[object]:
    """Returns events as far as they are the same each time."""
    kept = [event for event in events if not isinstance(event, UsageCounted)]
    return [(event.name, event.arguments) if isinstance(event, ToolCalled) else event for event in kept]


def error_of(kind: str, type_: str, message: str, code: object = None) -> dict[str, Any]:
    """Returns an error as each API puts it into a body."""
    inner = {'type': type_, 'message': message, **({'code': code} if kind == 'openai' else {})}
    return {'type': 'error', 'error': inner} if kind == 'anthropic' else {'error': inner}


def require_discreet(failure: TradingAgentError, *never: str) -> None:
    """Sees to it that nothing that is printed of a failure shows what must not be shown."""
    shown = ''.join([*traceback.format_exception(failure), str(failure), repr(failure), failure.hint, failure.in_words])
    for secret in (KEY, *never):
        assert secret not in shown
    assert failure.__cause__ is None
    assert failure.__context__ is None


FAILURES: dict[int, type[TradingAgentError]] = {
    400: TurnRefused,
    401: BackendDown,
    402: BackendDown,
    403: BackendDown,
    404: BackendDown,
    408: BackendBusy,
    409: BackendBusy,
    413: ContextTooSmall,
    422: TurnRefused,
    429: BackendBusy,
    500: BackendDown,
    501: BackendDown,
    502: BackendDown,
    503: BackendDown,
    504: BackendDown,
    529: BackendDown,
}
FOR_GOOD = (400, 401, 402, 403, 404, 413, 422, 501)


@pytest.mark.parametrize('tools', [False, True], ids=['plain', 'tools'])
async def test_each_status_says_what_comes_next(mock: Mock, *, tools: bool) -> None:
    """Each HTTP error becomes the error by which the router knows what to do, after a single request."""
    from llmock.scenarios import Fail

    found = {}
    async with closing(mock.provider()) as provider:
        for number, status in enumerate(FAILURES, 1):
            request = asking(f'What does share {status} cost?', tools=tools)
            mock.plan(Fail(status, retry_after=0.02))
            with pytest.raises(TradingAgentError) as raised:
                await told(provider, request)
            found[status] = type(raised.value)
            assert f'answered {status}' in str(raised.value)
            assert len(mock.state.journal.records(wait=2.0)) == 2 * number - 1
            if isinstance(raised.value, BackendBusy):
                assert raised.value.retry_after == pytest.approx(0.02)
            await anyio.sleep(0.02)
            later = asking(f'Something else than {status}?', tools=tools) if status in FOR_GOOD else request
            assert isinstance((await told(provider, later))[-1], Stopped)
    assert found == FAILURES
    mock.require_no_mistakes(len(FAILURES) + len(FOR_GOOD))


@pytest.mark.parametrize('tools', [False, True], ids=['plain', 'tools'])
async def test_a_conversation_that_is_too_long(mock: Mock, *, tools: bool) -> None:
    """A conversation beyond the model's context is told apart from a request that is refused."""
    from llmock.ratelimit import LimitSettings

    mock.state.limiter.configure(LimitSettings(context_window=50))
    async with closing(mock.provider()) as provider:
        with pytest.raises(ContextTooSmall) as raised:
            await told(provider, asking('word ' * 200, tools=tools))
        assert 'context_tokens' in raised.value.hint
        await told(provider, asking(tools=tools))
    mock.require_no_mistakes(2)


async def test_a_real_quota_says_how_long_to_wait(mock: Mock) -> None:
    """A quota that is used up says how long it takes to fill again."""
    from llmock.ratelimit import LimitSettings

    mock.state.limiter.configure(LimitSettings(rpm=1))
    async with closing(mock.provider()) as provider:
        await told(provider, asking())
        with pytest.raises(BackendBusy) as raised:
            await told(provider, asking())
    assert raised.value.retry_after is not None
    assert 50 < raised.value.retry_after <= 60


@pytest.mark.parametrize('tools', [False, True], ids=['plain', 'tools'])
@pytest.mark.parametrize('fault', ['disconnect', 'truncate', 'malformed'])
async def test_a_stream_that_breaks_at_each_place(mock: Mock, fault: str, *, tools: bool) -> None:
    """Wherever a stream is cut or damaged, it is either a failure to be tried again, or no word of it is missing."""
    from llmock.scenarios import Reply, StreamFault, ToolCall

    mock.pause(fault == 'malformed')
    calls = (ToolCall('price', {'symbol': 'INFY'}), ToolCall('price', {'symbol': 'WIPRO'}))
    mock.plan(Reply(text='Infosys costs 1500 rupees.', tool_calls=calls if tools else (), times=None))
    async with closing(mock.provider()) as provider:
        whole = await told(provider, asking(tools=tools))
        pieces, failed = mock.chunks, 0
        for place in range(pieces):
            request = asking(f'What does share {place} cost?', tools=tools)
            mock.plan(StreamFault(fault, after_chunks=place))  # type: ignore[arg-type]
            events: list[TurnEvent] = []
            try:
                await told(provider, request, events)
            except BackendBusy:
                failed += 1
                assert not any(isinstance(event, Stopped) for event in events)
            else:
                assert without_counts(events) == without_counts(whole)
            assert without_counts(await answered(provider, request)) == without_counts(whole)
        # OpenAI sends two more pieces behind the reason why the model stopped, the usage and that it is done; and of
        # Anthropic's pieces one is a ping, which may as well be damaged.
        assert failed >= pieces - (2 if mock.kind == 'openai' else fault == 'malformed')
    # When the last piece is damaged, the server has nothing left by which to notice that its client has gone.
    mock.require_no_mistakes(beside={'malformed_chunk_ignored'} if fault == 'malformed' else set())


async def test_a_stalled_stream_is_left(mock: Mock) -> None:
    """A server that falls silent in the middle of an answer is left after the read time-out."""
    from llmock.scenarios import StreamFault

    mock.plan(StreamFault('stall', after_chunks=2, stall_seconds=20))
    async with closing(mock.provider(read_timeout=1.0)) as provider:
        with anyio.fail_after(30), pytest.raises(BackendBusy, match='too long'):
            await told(provider, asking())
        await answered(provider, asking())
    mock.require_no_mistakes()


async def test_broken_arguments_of_a_tool_are_the_models_failure(mock: Mock) -> None:
    """A call whose arguments are no JSON is never passed on."""
    from llmock.scenarios import ToolFault

    mock.plan(ToolFault('malformed_arguments'))
    events: list[TurnEvent] = []
    async with closing(mock.provider()) as provider:
        with pytest.raises(InvalidAnswer, match="'price' are no JSON object"):
            await told(provider, asking(tools=True), events)
    assert not any(isinstance(event, ToolCalled) for event in events)


async def test_many_turns_at_once(mock: Mock) -> None:
    """One provider serves many turns side by side, each with its own answer."""
    from llmock.scenarios import Match, Reply

    names = [f'model-{number}' for number in range(12)]
    mock.plan(*(Reply(text=f'This is {name} .', match=Match(model=name)) for name in names))
    async with closing(mock.provider()) as provider:

        async def ask(name: str) -> None:
            request = asking()
            events = await told(provider, type(request)(model=name, messages=request.messages))
            assert text_of(events) == f'This is {name} .'

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
    mock.require_no_mistakes(12)


CUTS = {'reset': reset, 'half': send_half, 'garbage': send_garbage, 'closed': hang_up}


@pytest.mark.parametrize('cut', CUTS)
async def test_connections_that_break(kind: str, cut: str) -> None:
    """A connection that breaks before or within an answer makes the backend busy, whatever the SDK makes of it."""
    events: list[TurnEvent] = []
    within = stream(*BEGUN[kind], after=CUTS[cut], whole=False)
    assert [type(failure) for failure in await failures_of(kind, CUTS[cut], within)] == [BackendBusy, BackendBusy]
    assert type(await failure_of(kind, within, events)) is BackendBusy
    if cut != 'reset':  # which may take with it what was sent before
        assert text_of(events) == 'Infosys '


async def test_a_stream_that_ends_without_a_reason(kind: str) -> None:
    """A body that ends as it should, but not the answer in it, is cut."""
    pieces = [*BEGUN[kind], *ENDED[kind][:-1]] if kind == 'anthropic' else BEGUN[kind]
    failures = await failures_of(kind, *(stream(*pieces[:place]) for place in range(len(pieces) + 1)))
    assert {(type(failure), str(failure)) for failure in failures} == {(BackendBusy, 'the stream was cut')}


@pytest.mark.parametrize(
    'garbage', ['data: {"type": \n\n', 'event: x\ndata: [1]\n\n', 'event: x\ndata: {"choices": 7, "type": 7}\n\n']
)
async def test_unreadable_events(kind: str, garbage: str) -> None:
    """What cannot be read in a stream is a failure and no crash."""
    if kind == 'anthropic' and not garbage.startswith('event'):
        garbage = f'event: content_block_delta\n{garbage}'
    assert type(await failure_of(kind, stream(*BEGUN[kind], garbage, *ENDED[kind]))) is BackendBusy


async def test_nothing_listens(kind: str) -> None:
    """A server that is not there: the backend is down."""
    async with serving(hang_up) as raw:
        gone = raw.url
    async with closing(PROVIDERS[kind]('m', KEY, gone)) as provider:
        with pytest.raises(BackendDown, match=r'127\.0\.0\.1:\d+ cannot be reached') as raised:
            await told(provider, asking())
    assert 'base_url' in raised.value.hint
    require_discreet(raised.value)


async def test_a_name_that_is_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that nobody knows: the backend is down."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')

    monkeypatch.setattr(socket, 'getaddrinfo', unknown)
    async with closing(PROVIDERS[kind]('m', KEY, 'http://user:pass@models.example/v1')) as provider:
        with pytest.raises(BackendDown, match=r'^models\.example cannot be reached: .*Name or service') as raised:
            await told(provider, asking())
    require_discreet(raised.value, 'pass@')


async def test_a_server_that_speaks_no_tls(kind: str) -> None:
    """A handshake that fails: the backend is down."""

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 400 Bad Request\r\n\r\n')
        writer.close()

    async with await asyncio.start_server(met, '127.0.0.1', 0) as server:
        url = f'https://127.0.0.1:{server.sockets[0].getsockname()[1]}'
        async with closing(PROVIDERS[kind]('m', KEY, url)) as provider:
            with pytest.raises(BackendDown, match='cannot be reached'):
                await told(provider, asking())


async def test_what_is_no_api(kind: str) -> None:
    """A web page or a redirection where the API should be is told as a wrong base_url; nothing is sent elsewhere."""
    async with serving(hang_up) as elsewhere:
        moved = answer(307, '', {'location': f'{elsewhere.url}/v1'})
        failures = await failures_of(kind, answer(200, '<html>Welcome</html>'), moved)
        assert elsewhere.received == []
    for failure in failures:
        assert type(failure) is BackendDown
        assert 'base_url' in failure.hint


def _date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


async def test_retry_after(kind: str) -> None:
    """How long a server asks to be left alone is passed on, bounded, whether it is rate limited or overloaded."""
    said: list[tuple[dict[str, str], float | None]] = [
        ({'retry-after': '7'}, 7),
        ({'retry-after': _date(120)}, 120),
        ({'retry-after': '7', 'retry-after-ms': '1500'}, 1.5),
        ({'retry-after': '999999999'}, 3600),
        ({'retry-after': 'Mon, 05 Jan 2026 10:00:30 GMT', 'date': 'Mon, 05 Jan 2026 10:00:00 GMT'}, 30),
        ({'retry-after': 'soon'}, None),
        ({}, None),
    ]
    body = error_of(kind, 'some_error', 'later')
    for status, type_ in ((429, BackendBusy), (503, BackendDown)):
        failures = await failures_of(kind, *(answer(status, body, headers) for headers, _ in said))
        for failure, (_, seconds) in zip(failures, said, strict=True):
            assert type(failure) is type_
            assert isinstance(failure, BackendBusy | BackendDown)
            assert failure.retry_after == (seconds if seconds is None else pytest.approx(seconds, abs=20))


IN_STREAM = [
    ('overloaded_error', 'Overloaded', None, BackendDown),
    ('rate_limit_error', 'slow down', None, BackendBusy),
    ('api_error', 'Internal server error', None, BackendDown),
    ('server_error', 'the slot failed', 500, BackendDown),
    ('authentication_error', 'who are you', None, BackendDown),
    ('invalid_request_error', 'no such thing', None, TurnRefused),
    ('invalid_request_error', 'prompt is too long: 9 tokens > 8 maximum', None, ContextTooSmall),
    ('exceed_context_size_error', 'the request exceeds the available context size', 400, ContextTooSmall),
    ('something_new', 'nobody knows', None, BackendBusy),
]


async def test_errors_within_a_stream(kind: str) -> None:
    """An error that comes as an event of a stream means what its type says."""
    errors = [error_of(kind, type_, message, code) for type_, message, code, _ in IN_STREAM]
    failures = await failures_of(kind, *(stream(*BEGUN[kind], error) for error in errors))
    assert [type(failure) for failure in failures] == [type_ for *_, type_ in IN_STREAM]
    events: list[TurnEvent] = []
    await failure_of(kind, stream(*BEGUN[kind], errors[0]), events)
    assert text_of(events) == 'Infosys '


SAID = [
    (400, 'invalid_request_error', None, 'prompt is too long: 210000 tokens > 200000 maximum', ContextTooSmall),
    (
        400,
        'invalid_request_error',
        None,
        'input length and `max_tokens` exceed context limit: 9 + 2 > 10',
        ContextTooSmall,
    ),
    (400, 'invalid_request_error', 'context_length_exceeded', 'it resulted in 9000 tokens', ContextTooSmall),
    (400, 'exceed_context_size_error', 400, 'the request exceeds the available size', ContextTooSmall),
    (400, 'BadRequestError', 400, 'The prompt is longer than the maximum model length of 4096', ContextTooSmall),
    (400, 'invalid_request_error', None, 'The input token count (9) exceeds the maximum allowed (8)', ContextTooSmall),
    (413, 'request_too_large', None, 'Request exceeds the maximum size', ContextTooSmall),
    (429, 'tokens', 'rate_limit_exceeded', 'Request too large for gpt on tokens per min', ContextTooSmall),
    (429, 'tokens', 'rate_limit_exceeded', 'Rate limit reached on input tokens: too many tokens', BackendBusy),
    (429, 'insufficient_quota', 'insufficient_quota', 'You exceeded your current quota', BackendDown),
    (400, 'invalid_request_error', None, 'Your credit balance is too low to access the API', BackendDown),
    (400, 'invalid_request_error', 'content_policy_violation', 'rejected by the safety system', TurnRefused),
    (403, 'permission_error', None, 'your input was flagged by moderation', TurnRefused),
    (403, 'permission_error', None, 'this key may not use this model', BackendDown),
]


async def test_what_the_words_say(kind: str) -> None:
    """Where a status may mean several things, the words of the API decide."""
    acts = []
    for status, type_, code, message, _ in SAID:
        # Anthropic has no other place for a code.
        named = code if kind == 'anthropic' and isinstance(code, str) else type_
        acts.append(answer(status, error_of(kind, named, message, code)))
    failures = await failures_of(kind, *acts)
    assert [type(failure) for failure in failures] == [type_ for *_, type_ in SAID]
    for failure, (*_, message, _) in zip(failures, SAID, strict=True):
        assert message in str(failure)


async def test_no_failure_shows_a_key_or_the_conversation(kind: str) -> None:
    """However a server repeats the key or what it was told, nobody is shown it."""
    echo = f'You sent Authorization: Bearer {KEY} and also {PRIVATE}'
    bodies = [
        error_of(kind, 'invalid_request_error', echo),
        error_of(kind, KEY, f'key {KEY}', KEY),
        {'error': f'wrong key {KEY}'},
        {'detail': [{'loc': ['body', 'messages'], 'msg': f'bad {KEY}', 'input': PRIVATE}]},
        {'message': f'bad {KEY}'},
        f'<html>{echo}</html>',
        [KEY],
        error_of(kind, 'authentication_error', f'Incorrect key: {KEY[:10]}***{KEY[-4:]}'),
    ]
    statuses = [400, 401, 403, 404, 413, 422, 429, 500, 529]
    failures = await failures_of(kind, *(answer(status, body) for status in statuses for body in bodies))
    for failure in failures:
        require_discreet(failure, PRIVATE)
        if ' 401' in str(failure):
            assert 'api_key_env' in failure.hint
            assert KEY[:10] not in str(failure)


async def test_no_failure_within_a_stream_shows_a_key(kind: str) -> None:
    """Nor does an error within a stream, nor one that is no JSON."""
    for said in (error_of(kind, 'api_error', f'{KEY} {PRIVATE}', KEY), f'event: error\ndata: {KEY}\n\n'):
        require_discreet(await failure_of(kind, stream(*BEGUN[kind], said)), PRIVATE)
    require_discreet(await failure_of(kind, reset))


async def _begin(provider: ApiProvider, seen: asyncio.Event) -> None:
    async for event in provider.stream(asking()):
        if isinstance(event, TextPiece):
            seen.set()


async def _require_quiet(raw: Raw) -> None:
    """Waits until the server has seen its client leave, and nothing of the request is left here."""
    with anyio.fail_after(30):
        await raw.left.wait()
    gc.collect(1)
    with anyio.fail_after(30):
        while [
            task for task in asyncio.all_tasks() if task is not asyncio.current_task() and 'visited' not in repr(task)
        ]:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize('begun', [False, True], ids=['before', 'within'])
async def test_cancellation_closes_the_connection(kind: str, *, begun: bool) -> None:
    """A turn that is cancelled before or within its answer leaves the server at once, and nothing behind."""
    act = stream(*BEGUN[kind], after=stay, whole=False) if begun else stay
    async with serving(act) as raw, closing(PROVIDERS[kind]('m', KEY, raw.url)) as provider:
        seen = asyncio.Event()
        task = asyncio.create_task(_begin(provider, seen))
        await asyncio.wait_for(seen.wait() if begun else raw.asked.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _require_quiet(raw)


async def test_a_scope_that_is_cancelled_closes_the_connection(kind: str) -> None:
    """So does a time limit around it, which cancels again and again."""
    async with (
        serving(stream(*BEGUN[kind], after=stay, whole=False)) as raw,
        closing(PROVIDERS[kind]('m', KEY, raw.url)) as provider,
    ):
        events: list[TurnEvent] = []
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(30) as scope:

                async def limit() -> None:
                    while not text_of(events):  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                    scope.deadline = anyio.current_time() + 0.1

                tasks.start_soon(limit)
                await told(provider, asking(), events)
        assert scope.cancelled_caught
        assert text_of(events) == 'Infosys '
        await _require_quiet(raw)


async def test_a_stream_that_is_dropped_closes_the_connection(kind: str) -> None:
    """Whoever closes a stream in the middle of an answer leaves the server at once."""
    async with (
        serving(stream(*BEGUN[kind], after=stay, whole=False)) as raw,
        closing(PROVIDERS[kind]('m', KEY, raw.url)) as provider,
    ):
        answer_ = provider.stream(asking())
        while not isinstance(await anext(answer_), TextPiece):
            pass
        await answer_.aclose()
        await _require_quiet(raw)


async def test_closing_in_the_middle(kind: str) -> None:
    """A provider that is closed fails the turn that runs, and serves the next one all the same."""
    begun = stream(*BEGUN[kind], after=stay, whole=False)
    whole = stream(*BEGUN[kind], *ENDED[kind])
    async with serving(begun, whole) as raw, closing(PROVIDERS[kind]('m', KEY, raw.url)) as provider:
        seen = asyncio.Event()
        task = asyncio.create_task(_begin(provider, seen))
        await asyncio.wait_for(seen.wait(), 30)
        await provider.aclose()
        with pytest.raises(BackendError):
            await asyncio.wait_for(task, 30)
        await provider.aclose()
        assert text_of(await told(provider, asking([UserMessage('again')]))) == 'Infosys '
