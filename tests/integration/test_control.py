"""The control socket against a real bus, a desk that is a fake, and real connections."""

import asyncio
import json
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from blockbuster import blockbuster_ctx
from uvicorn.server import ServerState

from trading_agent import files
from trading_agent.daemon.sources import http_server, trigger_request
from trading_agent.daemon.sources.control import ControlServer
from trading_agent.daemon.status import (
    ClockStatus,
    DaemonInfo,
    DeskStatus,
    ReloadResult,
    RolloverResult,
    Status,
    TriggerResult,
)
from trading_agent.errors import ConfigurationError, DeskUnusable, Problem, StorageError
from trading_agent.event_bus import EventBus
from trading_agent.events import DateChanged, ModelCallFailed, TriggerAccepted, TriggerClosed, TurnOutput
from trading_agent.logs import log_record
from trading_agent.trigger import Receipt, Trigger

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)


class FakeDesk:
    """A desk that keeps what it was sent, answers as told, and fulfils the port."""

    def __init__(self, bus: EventBus) -> None:
        self.bus = bus
        self.received: list[Trigger] = []
        self.results: dict[str, TriggerResult] = {}
        self.reason: Any = None
        self.on_trigger: Callable[[Trigger], None] = lambda _: None
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.storage_errors = 0
        self.told: list[tuple[Any, ...]] = []
        self.open: dict[str, TriggerResult] = {}
        self.unconfigured: list[str] = []
        bus.attach('main', self.receive)

    async def receive(self, trigger: Trigger) -> Receipt:
        if self.gate is not None:
            await self.gate.wait()
        if self.reason is not None:
            return Receipt(trigger.id, trigger.desk, 'refused', self.reason)
        known = trigger.id in {earlier.id for earlier in self.received}
        if not known:
            self.received.append(trigger)
            self.on_trigger(trigger)
        return Receipt(trigger.id, trigger.desk, 'duplicate' if known else 'accepted')

    def output(self, trigger_id: str, text: str, turn: str = '1', backend: str = 'offline') -> None:
        self.bus.publish(
            TurnOutput(desk='main', trigger_id=trigger_id, turn_id=f'{trigger_id}/{turn}', backend=backend, text=text)
        )

    def close(self, trigger_id: str, answer: str = 'done') -> None:
        self.results[trigger_id] = TriggerResult('answered', answer, 'offline', '2026-10-19-1')
        self.bus.publish(TriggerClosed(desk='main', trigger_id=trigger_id, outcome='answered'))

    def status(self) -> Status:
        if self.failure is not None:
            raise self.failure
        desks = [self.status_of('main'), *map(self.status_of, self.unconfigured)]
        return Status(DaemonInfo('0.1.0', 'run-1', 7, NOON), ClockStatus(NOON, 'steady'), desks)

    def status_of(self, name: str) -> DeskStatus:
        return DeskStatus(
            name=name,
            state='running',
            reason='',
            session_id='2026-10-19-1',
            trading_date=date(2026, 10, 19),
            exchanges=2,
            queue=0,
            oldest_trigger_at=None,
            turn=None,
            last_turn_at=NOON,
            backends=[],
            next_boundary=NOON,
        )

    def has_desk(self, desk: str) -> bool:
        return desk == 'main'

    async def pause(self, desk: str, by: str, reason: str, *, now: bool) -> DeskStatus:
        return self.tell('pause', desk, by, reason, now)

    async def resume(self, desk: str, by: str) -> DeskStatus:
        return self.tell('resume', desk, by)

    def tell(self, *told: Any) -> DeskStatus:  # noqa: ANN401 - as they come
        if self.failure is not None:
            raise self.failure
        self.told.append(told)
        return self.status_of(told[1])

    async def cancel(self, desk: str, trigger_id: str, by: str, reason: str) -> TriggerResult | None:
        self.tell('cancel', desk, trigger_id, by, reason)
        return self.open.get(trigger_id)

    async def reload(self) -> ReloadResult:
        self.tell('reload', 'main')
        return ReloadResult(['desk b'], ['drain'], [])

    async def result_of(self, desk: str, trigger_id: str) -> TriggerResult | None:
        if desk in self.unconfigured:
            raise DeskUnusable(f'the desk {desk!r} is not configured', 'add it again')
        if self.storage_errors:
            self.storage_errors -= 1
            raise StorageError('read', Path('triggers.jsonl'), OSError(5, 'Input/output error'))
        return self.results.get(trigger_id)

    async def roll_over(self, desk: str) -> RolloverResult:
        if self.failure is not None:
            raise self.failure
        return RolloverResult(rolled_over=True, session_id='2026-10-19-2', previous_session_id='2026-10-19-1')


@asynccontextmanager
async def serving(
    path: Path,
    bus: EventBus | None = None,
    **options: Any,  # noqa: ANN401 - those of the server
) -> AsyncIterator[tuple[ControlServer, FakeDesk]]:
    """Runs a server with a fake desk behind it."""
    bus = bus or EventBus()
    desk = FakeDesk(bus)
    server = ControlServer(bus, desk, path, run_id='run-1', **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        try:
            yield server, desk
        finally:
            server.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket is."""
    return tmp_path / 'control.sock'


class Call:
    """One request on a connection of its own, whose answer can be read line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def start(cls, path: Path, method: str, target: str, body: bytes | dict[str, Any] = b'') -> 'Call':
        with files.short_name(path) as name:
            call = cls(*await asyncio.open_unix_connection(name))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f'{method} {target} HTTP/1.1\r\nHost: desk\r\nContent-Length: {len(data)}\r\n\r\n'
        call.writer.write(head.encode() + data)
        return call

    async def head(self) -> int:
        status, *headers = (await self.reader.readuntil(b'\r\n\r\n')).decode().rstrip().split('\r\n')
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value for name, value in (header.split(': ', 1) for header in headers)}
        return self.status

    async def json(self) -> Any:  # noqa: ANN401
        """Reads the rest of an answer that is no stream."""
        assert self.headers['content-type'] == 'application/json'
        return json.loads(await self.reader.readexactly(int(self.headers['content-length'])))

    async def chunk(self) -> list[Any]:
        """Reads the lines that were sent at once; none at the end of the stream."""
        size = int((await self.reader.readline()).strip(), 16)
        data = (await self.reader.readexactly(size + 2))[:-2]
        return [json.loads(line) for line in data.decode().split('\n') if line]

    async def lines(self) -> list[Any]:
        """Reads a stream to its end."""
        found: list[Any] = []
        while part := await self.chunk():
            found += part
        return found

    def close(self) -> None:
        self.writer.close()


async def ask(path: Path, method: str, target: str, body: bytes | dict[str, Any] = b'') -> tuple[int, Any]:
    """Returns the status and the content of an ordinary answer."""
    call = await Call.start(path, method, target, body)
    try:
        async with asyncio.timeout(30):
            return await call.head(), await call.json()
    finally:
        call.close()


async def stream(path: Path, method: str, target: str, body: bytes | dict[str, Any] = b'') -> list[Any]:
    """Returns the lines of a stream that ends by itself."""
    call = await Call.start(path, method, target, body)
    try:
        async with asyncio.timeout(30):
            assert await call.head() == 200
            assert call.headers['content-type'] == 'application/x-ndjson'
            return await call.lines()
    finally:
        call.close()


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until something is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it did not come true in time'
        await asyncio.sleep(0.005)


def mode(path: Path) -> int:
    """Returns the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def state_of(server: ControlServer) -> ServerState:
    """Returns what uvicorn is doing at the moment."""
    assert server._server is not None
    return server._server.server_state


def owner_group(path: Path) -> int:
    """Returns the group of a file."""
    return path.stat().st_gid


def is_stuck(connection: Any) -> bool:  # noqa: ANN401 - one of uvicorn's protocols
    """Returns whether a connection waits for its client to read."""
    return bool(connection.flow.write_paused)


def listening(server: ControlServer) -> bool:
    """Returns whether new connections are taken."""
    assert server._server is not None
    return any(listener.is_serving() for listener in server._server.servers)


def gone(path: Path) -> bool:
    """Returns whether there is nothing at a path."""
    return not os.path.lexists(path)


def put(kind: str, path: Path) -> None:
    """Puts something at a path: a file, a folder, a link to a socket, or a socket that nobody listens on."""
    if kind == 'file':
        path.write_text('precious')
    elif kind == 'folder':
        path.mkdir()
    elif kind == 'link':
        put('socket', path.with_name('target'))
        path.symlink_to(path.with_name('target'))
    else:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))


SEND = '/v1/desks/main/triggers'
WAIT = f'{SEND}?wait=true'


# -- status, routes, faults ----------------------------------------------------------------------------------------


async def test_status_is_the_status_of_the_port(path: Path) -> None:
    """GET /v1/status answers the whole status, with times in ISO 8601 and no field left out."""
    async with serving(path):
        code, answer = await ask(path, 'GET', '/v1/status')
    assert code == 200
    assert answer['daemon'] == {'version': '0.1.0', 'run_id': 'run-1', 'pid': 7, 'started_at': '2026-10-19T06:30:00Z'}
    assert answer['desks'][0]['turn'] is None
    assert answer['desks'][0]['trading_date'] == '2026-10-19'


@pytest.mark.parametrize(
    ('method', 'target', 'code'),
    [
        ('GET', '/', 404),
        ('GET', '/v1/status/', 404),
        ('POST', '/v1/desks/main/dance', 404),
        ('POST', '/v1/status', 405),
        ('GET', SEND, 405),
        ('GET', f'{SEND}/a-1', 405),
        ('POST', '/v1/reload/', 404),
        ('HEAD', '/v1/events', 405),
    ],
)
async def test_a_wrong_path_or_method_is_told_in_json(path: Path, method: str, target: str, code: int) -> None:
    """An unknown path is 404 and a wrong method 405, both with the routes that there are."""
    async with serving(path):
        call = await Call.start(path, method, target)
        assert await call.head() == code
        assert call.headers['content-type'] == 'application/json'
        if method != 'HEAD':
            answer = await call.json()
            assert target in answer['error']
            assert 'GET /v1/status' in answer['hint']
        if code == 405:
            assert call.headers['allow'] in ('GET', 'POST', 'DELETE')
        call.close()


async def test_an_unknown_parameter_is_a_mistake(path: Path) -> None:
    """A query parameter that does not exist is told with the nearest one, and nothing is done."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', f'{SEND}?wiat=true', {'text': 'hello'})
        assert (code, answer['hint']) == (400, "did you mean 'wait'?")
        code, answer = await ask(path, 'POST', f'{SEND}?wait=maybe', {'text': 'hello'})
        assert (code, answer['error']) == (400, "wait is true or false, not 'maybe'")
        assert desk.received == []


async def test_a_fault_of_our_own_is_answered_and_logged_and_the_server_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception is a 500 in JSON and a line in the log, and the next request is served."""
    async with serving(path) as (_, desk):
        desk.failure = RuntimeError('boom')
        code, answer = await ask(path, 'GET', '/v1/status')
        assert (code, answer['error']) == (500, 'RuntimeError: boom')
        assert answer['hint']
        assert 'GET /v1/status failed' in caplog.text
        desk.failure = None
        assert (await ask(path, 'GET', '/v1/status'))[0] == 200


async def test_what_is_no_http_harms_nobody(path: Path) -> None:
    """Rubbish on the socket, half a request, and a connection that says nothing leave the server serving."""
    async with serving(path):
        for data in (
            b'\x00\xff rubbish\r\n\r\n',
            b'POST /v1/desks/main/triggers HTTP/1.1\r\nContent-Length: 9\r\n',
            b'',
        ):
            _, writer = await asyncio.open_unix_connection(str(path))
            writer.write(data)
            writer.close()
        assert (await ask(path, 'GET', '/v1/status'))[0] == 200


# -- triggers ------------------------------------------------------------------------------------------------------


async def test_a_trigger_is_sent_with_every_field(path: Path) -> None:
    """POST triggers hands a trigger to the bus as the body says, and answers its receipt."""
    body = {
        'text': 'RELIANCE: board meeting',
        'id': 'a-1',
        'priority': 'timer',
        'source': 'cron',
        'not_before': '2026-10-19T15:10:00+05:30',
        'expires_at': '2026-10-19T10:00:00Z',
    }
    async with serving(path) as (_, desk):
        answer = await ask(path, 'POST', SEND, body)
        again = await ask(path, 'POST', SEND, body)
    assert answer == (200, {'id': 'a-1', 'desk': 'main', 'status': 'accepted', 'reason': None})
    assert again == (200, {'id': 'a-1', 'desk': 'main', 'status': 'duplicate', 'reason': None})
    [trigger] = desk.received
    assert (trigger.text, trigger.priority, trigger.source) == ('RELIANCE: board meeting', 'timer', 'cron')
    assert trigger.not_before == datetime(2026, 10, 19, 9, 40, tzinfo=UTC)
    assert trigger.expires_at == datetime(2026, 10, 19, 10, 0, tzinfo=UTC)


async def test_a_trigger_needs_no_more_than_its_text(path: Path) -> None:
    """Left out, the id is a new one, the priority `feed` and the source `api`."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', SEND, {'text': 'hello', 'id': None})
    assert code == 200
    assert desk.received[0].id == answer['id'] != ''
    assert (desk.received[0].priority, desk.received[0].source) == ('feed', 'api')


@pytest.mark.parametrize(
    ('reason', 'code'),
    [
        ('unknown_desk', 404),
        ('too_large', 413),
        ('invalid', 400),
        ('expired', 409),
        ('queue_full', 503),
        ('storage', 503),
        ('stopping', 503),
    ],
)
@pytest.mark.parametrize('target', [SEND, WAIT])
async def test_a_refusal_is_its_receipt_with_what_to_do(path: Path, reason: str, code: int, target: str) -> None:
    """Each reason has its status; the body is the receipt with an error, also where the sender would wait."""
    async with serving(path) as (_, desk):
        desk.reason = reason
        got, answer = await ask(path, 'POST', target, {'text': 'hello', 'id': 'a-1'})
    assert got == code
    assert answer.pop('error')
    assert isinstance(answer.pop('hint'), str)
    assert answer == {'id': 'a-1', 'desk': 'main', 'status': 'refused', 'reason': reason}


@pytest.mark.parametrize('wait', ['', '?wait=true'])
async def test_a_desk_that_is_not_there_is_told_with_those_that_are(path: Path, wait: str) -> None:
    """An unknown desk is 404; the hint names the desks, and the one that was probably meant."""
    async with serving(path):
        code, answer = await ask(path, 'POST', f'/v1/desks/mian/triggers{wait}', {'text': 'hello'})
    assert (code, answer['reason']) == (404, 'unknown_desk')
    assert answer['error'] == "no desk is named 'mian'"
    assert answer['hint'] == "the desks are main; did you mean 'main'?"


@pytest.mark.parametrize(
    ('body', 'told'),
    [
        (b'', 'not JSON'),
        (b'hello', 'not JSON'),
        (b'{"text": "\xff"}', 'not JSON'),
        (b'[' * 100_000, 'object'),
        (b'{"text": ' + b'[' * 100_000, 'text'),
        (b'[]', 'at least a "text"'),
        (b'{}', 'text'),
        (b'{"text": 5}', 'text'),
        (b'{"text": " "}', 'blank'),
        (b'{"text": "x", "txet": "y"}', "there is no key 'txet' did you mean 'text'?"),
        (b'{"text": "x", "zzzzz": "y"}', 'it has text, id'),
        (b'{"text": "x", "desk": "other"}', "there is no key 'desk'"),
        (b'{"text": "x", "priority": "urgent"}', 'one of person, timer, feed'),
        (b'{"text": "x", "not_before": "2026-10-19T15:10:00"}', 'write it like 2026-10-19T15:10:00+05:30'),
        (b'{"text": "x", "expires_at": "soon"}', 'write it like 2026-10-19T15:10:00+05:30'),
        (b'{"text": "x", "expires_at": "0001-01-01T00:00:00+05:30"}', 'out of range'),
        (b'{"text": "x", "id": "a\\nb"}', 'printable'),
        (b'{"text": "\\ud800", "txet": 1}', "did you mean 'text'?"),
    ],
)
async def test_a_body_that_is_wrong_is_told_how_to_mend_it(path: Path, body: bytes, told: str) -> None:
    """Whatever is wrong with a body is a 400 with what and how to mend it, and nothing is sent."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', SEND, body)
    assert (code, answer['status'], answer['reason']) == (400, 'refused', 'invalid')
    assert told in f'{answer["error"]} {answer["hint"]}'
    assert desk.received == []


async def test_an_invalid_trigger_is_told_under_the_id_that_it_was_given(path: Path) -> None:
    """A trigger whose text is blank is refused with its own id."""
    async with serving(path):
        code, answer = await ask(path, 'POST', SEND, {'text': ' ', 'id': 'a-1'})
    assert (code, answer['id'], answer['desk']) == (400, 'a-1', 'main')


@pytest.mark.parametrize('body', [b'{"text": "x\\ud800y"}', b'\xef\xbb\xbf{"text": "x\xef\xbf\xbdy"}'])
async def test_text_that_other_writers_send_is_taken(path: Path, body: bytes) -> None:
    """A lone surrogate, which json.dumps writes, becomes U+FFFD; a byte order mark is dropped."""
    async with serving(path) as (_, desk):
        assert (await ask(path, 'POST', SEND, body))[0] == 200
    assert desk.received[0].text == 'x\ufffdy'


async def test_a_body_over_the_limit_is_refused_without_being_kept(path: Path) -> None:
    """A body at the limit is taken, and one byte more is 413."""
    at_limit = json.dumps({'text': 'x' * 980}).encode().ljust(1000)
    async with serving(path, max_body_bytes=1000) as (_, desk):
        assert (await ask(path, 'POST', SEND, at_limit))[0] == 200
        code, answer = await ask(path, 'POST', SEND, at_limit + b' ')
        assert (code, answer['reason']) == (413, 'too_large')
        code, _ = await ask(path, 'POST', SEND, b' ' * 5_000_000)
        assert code == 413
    assert len(desk.received) == 1


async def test_the_longest_text_fits_however_it_is_escaped(path: Path) -> None:
    """A text of 1 MiB is taken even when each of its characters was sent as an escape of six."""
    async with serving(path) as (_, desk):
        code, _ = await ask(path, 'POST', SEND, b'{"text": "' + b'\\u0041' * (1 << 20) + b'"}')
    assert code == 200
    assert desk.received[0].text == 'A' * (1 << 20)


async def test_fifty_at_once_are_each_answered(path: Path) -> None:
    """Fifty senders side by side each get the receipt of their own trigger."""
    async with serving(path) as (_, desk):
        answers = await asyncio.gather(
            *(ask(path, 'POST', SEND, {'text': f'{number}', 'id': f'a-{number}'}) for number in range(50))
        )
    assert [answer['id'] for code, answer in answers if code == 200] == [f'a-{number}' for number in range(50)]
    assert {trigger.id for trigger in desk.received} == {f'a-{number}' for number in range(50)}


async def test_fifty_at_once_wait_for_their_own_answers(path: Path) -> None:
    """Fifty who wait side by side each get the pieces and the answer of their own trigger."""
    async with serving(path) as (_, desk):

        def answer(trigger: Trigger) -> None:
            desk.output(trigger.id, f'about {trigger.text}')
            desk.close(trigger.id, f'about {trigger.text}')

        desk.on_trigger = answer
        answers = await asyncio.gather(*(stream(path, 'POST', WAIT, {'text': f'{number}'}) for number in range(50)))
    for number, (receipt, text, result) in enumerate(answers):
        assert receipt['receipt']['status'] == 'accepted'
        assert text == {'text': f'about {number}'}
        assert result['result']['answer'] == f'about {number}'


# -- waiting for the answer ----------------------------------------------------------------------------------------


async def test_who_waits_gets_the_receipt_the_pieces_and_the_result(path: Path) -> None:
    """The stream begins before the desk's first word, so that even one said at once is not missed."""
    async with serving(path) as (_, desk):

        def begin(trigger: Trigger) -> None:
            desk.output(trigger.id, 'NIFTY ')
            desk.output('another', 'not this')

        desk.on_trigger = begin
        call = await Call.start(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
        assert await call.head() == 200
        assert await call.chunk() == [{'receipt': {'id': 'a-1', 'desk': 'main', 'status': 'accepted', 'reason': None}}]
        assert await call.chunk() == [{'text': 'NIFTY '}]
        desk.output('a-1', 'is up')
        assert await call.chunk() == [{'text': 'is up'}]
        desk.close('another')
        desk.close('a-1', 'NIFTY is up')
        assert await call.lines() == [
            {
                'result': {
                    'outcome': 'answered',
                    'answer': 'NIFTY is up',
                    'backend': 'offline',
                    'session_id': '2026-10-19-1',
                }
            }
        ]
        call.close()


async def test_a_duplicate_that_is_closed_gets_its_result_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends a trigger again after it was answered gets that answer, without any further event."""
    monkeypatch.setattr(trigger_request, 'POLL_SECONDS', 60)
    async with serving(path) as (_, desk):
        desk.on_trigger = lambda trigger: desk.close(trigger.id, 'once')
        first = await stream(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
        second = await stream(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
    assert [list(line) for line in second] == [['receipt'], ['result']]
    assert second[0]['receipt']['status'] == 'duplicate'
    assert second[1] == first[-1]
    assert len(desk.received) == 1


async def test_a_duplicate_that_is_open_is_waited_for(path: Path) -> None:
    """Who sends a trigger again while it runs gets the rest of its answer and its result."""
    async with serving(path) as (_, desk):
        await ask(path, 'POST', SEND, {'text': 'hello', 'id': 'a-1'})
        call = await Call.start(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
        await call.head()
        assert (await call.chunk())[0]['receipt']['status'] == 'duplicate'
        desk.output('a-1', 'late')
        assert await call.chunk() == [{'text': 'late'}]
        desk.close('a-1', 'late')
        assert (await call.lines())[0]['result']['answer'] == 'late'
        call.close()


async def test_an_answer_that_starts_over_is_told(path: Path) -> None:
    """A new attempt, another backend, and a failed call each put a `restart` before what comes next."""
    async with serving(path) as (_, desk):

        def fail(backend: str, trigger_id: str) -> None:
            desk.bus.publish(
                ModelCallFailed(
                    desk='main',
                    backend=backend,
                    purpose='turn',
                    trigger_id=trigger_id,
                    duration_ms=1,
                    error_type='BackendError',
                    error='cut off',
                )
            )

        def answer(trigger: Trigger) -> None:
            fail('claude', trigger.id)
            desk.output(trigger.id, 'a')
            desk.output(trigger.id, 'b')
            desk.output(trigger.id, 'c', turn='2')
            desk.output(trigger.id, 'd', turn='2', backend='gpt')
            fail('gpt', 'another')
            desk.output(trigger.id, 'e', turn='2', backend='gpt')
            fail('gpt', trigger.id)
            desk.output(trigger.id, 'f', turn='2', backend='gpt')
            desk.close(trigger.id, 'f')

        desk.on_trigger = answer
        lines = await stream(path, 'POST', WAIT, {'text': 'hello'})
    told = ['restart' if 'restart' in line else line['text'] for line in lines[1:-1]]
    # What a backend says after another one failed before its first word is no restart.
    assert told == ['a', 'b', 'restart', 'c', 'restart', 'd', 'e', 'restart', 'f']


async def test_a_result_comes_although_its_event_was_missed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting client that was overtaken by the ring of events still gets the result, by asking for it."""
    monkeypatch.setattr(trigger_request, 'POLL_SECONDS', 0.05)
    bus = EventBus(capacity=4)
    async with serving(path, bus) as (_, desk):
        call = await Call.start(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
        await call.head()
        await call.chunk()
        desk.storage_errors = 2
        desk.close('a-1', 'found')
        for _ in range(50):
            bus.publish(DateChanged(desks=1))
        assert (await call.lines())[-1]['result']['answer'] == 'found'
        call.close()


async def test_a_result_that_nobody_can_read_is_told_by_its_outcome(path: Path) -> None:
    """Where the daemon knows no more than the event, the result is the event's outcome."""
    async with serving(path) as (_, desk):
        desk.on_trigger = lambda trigger: desk.bus.publish(
            TriggerClosed(desk='main', trigger_id=trigger.id, outcome='stale', session_id='2026-10-19-1')
        )
        lines = await stream(path, 'POST', WAIT, {'text': 'hello'})
    assert lines[-1]['result'] == {
        'outcome': 'stale',
        'answer': None,
        'backend': None,
        'session_id': '2026-10-19-1',
    }


async def test_a_client_that_leaves_ends_its_stream_and_nothing_else(path: Path) -> None:
    """When a waiting client goes, what served it ends, and the trigger is answered all the same."""
    async with serving(path) as (server, desk):
        call = await Call.start(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
        await call.head()
        await call.chunk()
        running = state_of(server).tasks
        assert len(running) == 1
        call.close()
        await until(lambda: not running)
        assert [trigger.id for trigger in desk.received] == ['a-1']
        desk.close('a-1', 'anyway')
        lines = await stream(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
    assert lines[-1]['result']['answer'] == 'anyway'


async def test_a_client_that_leaves_does_not_take_back_half_a_trigger(path: Path) -> None:
    """A desk that is storing a trigger goes on with it although the client has gone."""
    async with serving(path) as (server, desk):
        desk.gate = asyncio.Event()
        calls = [await Call.start(path, 'POST', target, {'text': 'hello'}) for target in (SEND, WAIT)]
        running = state_of(server)
        await until(lambda: len(running.tasks) == 2)
        for call in calls:
            call.close()
        await until(lambda: not running.connections)
        desk.gate.set()
        await until(lambda: not running.tasks)
        assert len(desk.received) == 2


# -- events --------------------------------------------------------------------------------------------------------


async def test_events_come_as_they_are_logged(path: Path) -> None:
    """Each event is the line that the log has, with what was said as a length, and no `turn_output` among them."""
    bus = EventBus()
    accepted = TriggerAccepted(
        desk='main', trigger_id='a-1', source='api', priority='feed', text='secret', queue_depth=1
    )
    async with serving(path, bus) as (_, desk):
        call = await Call.start(path, 'GET', '/v1/events')
        assert await call.head() == 200
        with bus.subscribe() as events:
            desk.output('a-1', 'secret')
            bus.publish(accepted)
            bus.publish(DateChanged(desks=1))
            stamped = await events.stamped()
        lines = await call.chunk()
        call.close()
    assert lines == [log_record(item, 'run-1') for item in stamped[1:]]
    assert lines[0]['text_length'] == 6
    assert [line['event'] for line in lines] == ['trigger_accepted', 'date_changed']


async def test_events_can_be_chosen_by_desk_and_name(path: Path) -> None:
    """`desk` and `event` narrow the stream, `event` may be repeated, and `turn_output` shows its text when asked."""
    bus = EventBus()
    async with serving(path, bus) as (_, desk):
        call = await Call.start(path, 'GET', '/v1/events?desk=main&event=turn_output&event=trigger_closed')
        await call.head()
        bus.publish(DateChanged(desks=1))
        bus.publish(TriggerClosed(desk='other', trigger_id='b-1', outcome='answered'))
        desk.output('a-1', 'what is said')
        desk.close('a-1')
        lines = await call.chunk()
        call.close()
    assert [line['event'] for line in lines] == ['turn_output', 'trigger_closed']
    assert lines[0]['text'] == 'what is said'


@pytest.mark.parametrize(
    ('query', 'code', 'told'),
    [
        ('event=sesion_started', 400, "no event is named 'sesion_started' did you mean 'session_started'?"),
        ('event=', 400, 'events --catalog'),
        ('event=date_changed&event=zzz', 400, "no event is named 'zzz'"),
        ('desk=mian', 404, 'the desks are main'),
        ('since=oldest', 400, "there is no parameter 'since'"),
    ],
)
async def test_events_that_cannot_be_told_are_refused(path: Path, query: str, code: int, told: str) -> None:
    """A wrong event, desk or parameter is an ordinary error and no silent stream."""
    async with serving(path):
        got, answer = await ask(path, 'GET', f'/v1/events?{query}')
    assert got == code
    assert told in f'{answer["error"]} {answer["hint"]}'


# -- rollover ------------------------------------------------------------------------------------------------------


async def test_a_rollover_is_answered_with_what_came_of_it(path: Path) -> None:
    """POST rollover answers the result; an unusable desk is 409 and an unknown one 404."""
    async with serving(path) as (_, desk):
        assert await ask(path, 'POST', '/v1/desks/main/rollover') == (
            200,
            {'rolled_over': True, 'session_id': '2026-10-19-2', 'previous_session_id': '2026-10-19-1'},
        )
        desk.failure = DeskUnusable('main is parked', 'mend the disk')
        assert await ask(path, 'POST', '/v1/desks/main/rollover') == (
            409,
            {'error': 'main is parked', 'hint': 'mend the disk'},
        )
        desk.failure = StorageError('append', Path('x'), OSError(28, 'No space left on device'))
        code, answer = await ask(path, 'POST', '/v1/desks/main/rollover')
        assert code == 503
        assert 'free some space' in answer['hint']
        desk.failure = None
        code, answer = await ask(path, 'POST', '/v1/desks/other/rollover')
        assert (code, answer['hint']) == (404, 'the desks are main')


# -- holding a desk ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('body', 'told'),
    [
        (b'', ('api', '', False)),
        (b'{}', ('api', '', False)),
        ({'by': 'anil', 'reason': 'expiry day', 'now': True}, ('anil', 'expiry day', True)),
        (b'{"by": "anil", "reason": "a\\ud800b"}', ('anil', 'a\ufffdb', False)),
    ],
)
async def test_a_pause_says_who_why_and_how(path: Path, body: bytes | dict[str, Any], told: tuple[Any, ...]) -> None:
    """POST pause holds the desk as the body says, without one as an `api`, and answers the desk's status."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', '/v1/desks/main/pause', body)
        assert (code, answer['name'], answer['state']) == (200, 'main', 'running')
        assert desk.told == [('pause', 'main', *told)]


async def test_a_resume_says_who(path: Path) -> None:
    """POST resume lets the desk go on and answers its status; what keeps it from doing so is 409 or 503."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', '/v1/desks/main/resume', {'by': 'anil'})
        assert (code, answer['name']) == (200, 'main')
        assert desk.told == [('resume', 'main', 'anil')]
        desk.failure = DeskUnusable('the desk main cannot be cut off', 'restart the daemon')
        assert await ask(path, 'POST', '/v1/desks/main/resume') == (
            409,
            {'error': 'the desk main cannot be cut off', 'hint': 'restart the daemon'},
        )
        desk.failure = StorageError('remove', Path('paused.json'), OSError(30, 'Read-only file system'))
        assert (await ask(path, 'POST', '/v1/desks/main/resume'))[0] == 503


@pytest.mark.parametrize(
    ('body', 'told'),
    [
        (b'hello', 'send one object such as {"by": "anil"'),
        (b'[]', 'send one object such as'),
        (b'{"by": ""}', 'a name of 1 to 100 characters'),
        (b'{"by": 5}', 'a name of 1 to 100 characters'),
        (b'{"reason": null}', 'a text of at most 1000 characters'),
        (json.dumps({'reason': 'x' * 1001}).encode(), 'a text of at most 1000 characters'),
        (b'{"now": "yes"}', 'true or false'),
        (b'{"reasn": "x"}', "did you mean 'reason'?"),
        (b'{"zzz": "x"}', 'it has by, reason, now'),
    ],
)
async def test_a_command_that_is_wrong_is_told_how_to_mend_it(path: Path, body: bytes, told: str) -> None:
    """Whatever is wrong with the body of a command is a 400 with how to mend it, and nothing is done."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', '/v1/desks/main/pause', body)
        assert (code, list(answer)) == (400, ['error', 'hint'])
        assert told in answer['hint']
        assert desk.told == []


async def test_a_command_has_no_long_body(path: Path) -> None:
    """The body of a command is read to 64 KiB and no further."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'POST', '/v1/desks/main/pause', b'{}' + b' ' * (64 << 10))
        assert (code, answer['error']) == (413, 'the body is too long')
        assert desk.told == []


@pytest.mark.parametrize(
    ('method', 'what'),
    [('POST', 'pause'), ('POST', 'resume'), ('POST', 'rollover'), ('DELETE', 'triggers/a-1')],
)
async def test_a_command_for_a_desk_that_is_not_there(path: Path, method: str, what: str) -> None:
    """An unknown desk is 404 with those that there are; one that has left triggers only is 409, with what to do."""
    async with serving(path) as (_, desk):
        desk.unconfigured = ['old']
        code, answer = await ask(path, method, f'/v1/desks/mian/{what}')
        assert (code, answer['error']) == (404, "no desk is named 'mian'")
        assert answer['hint'] == "the desks are main; did you mean 'main'?"
        code, answer = await ask(path, method, f'/v1/desks/old/{what}')
        assert (code, answer['error']) == (409, "the desk 'old' is not configured")
        assert 'its triggers are kept' in answer['hint']
        assert 'trading-agent reload' in answer['hint']
        assert desk.told == []


async def test_a_trigger_for_a_desk_that_is_no_longer_configured(path: Path) -> None:
    """Sending to a desk of which only triggers are left is refused as unknown, with what to do."""
    async with serving(path) as (_, desk):
        desk.unconfigured = ['old']
        code, answer = await ask(path, 'POST', '/v1/desks/old/triggers', {'text': 'hello'})
        assert (code, answer['reason']) == (404, 'unknown_desk')
        assert answer['error'] == "the desk 'old' is not configured"
        assert 'trading-agent reload' in answer['hint']


async def test_who_waits_at_a_desk_that_is_taken_away_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose desk is taken out of the configuration gets an error, or the outcome where its turn was the last one."""
    monkeypatch.setattr(trigger_request, 'POLL_SECONDS', 0.05)
    async with serving(path) as (_, desk):
        desk.on_trigger = lambda _: desk.unconfigured.append('main')
        *_, last = await stream(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-1'})
        assert last == {'error': "the desk 'main' is not configured", 'hint': 'add it again'}
        desk.on_trigger = lambda trigger: desk.close(trigger.id)
        *_, last = await stream(path, 'POST', WAIT, {'text': 'hello', 'id': 'a-2'})
        assert last['result']['outcome'] == 'answered'


# -- cancelling a trigger ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'trigger_id',
    [
        'a-1',
        'replay/2025-12-16/7',
        '/',
        'a//b/',
        '../../status',
        'a b',
        '%41%2F',
        'a?b#c&d=e+f;g',
        '"quoted"\\',
        'निफ्टी/₹',
        'x' * 128,
        'triggers/main',
    ],
)
async def test_any_trigger_can_be_cancelled(path: Path, trigger_id: str) -> None:
    """DELETE reaches the trigger whatever printable characters its id has, and answers how it ended."""
    async with serving(path) as (_, desk):
        desk.open[trigger_id] = TriggerResult('cancelled', session_id='2026-10-19-1')
        target = f'{SEND}/{quote(trigger_id, safe="")}'
        assert await ask(path, 'DELETE', target, {'by': 'anil', 'reason': 'sent twice'}) == (
            200,
            {
                'id': trigger_id,
                'desk': 'main',
                'outcome': 'cancelled',
                'answer': None,
                'backend': None,
                'session_id': '2026-10-19-1',
            },
        )
        assert desk.told == [('cancel', 'main', trigger_id, 'anil', 'sent twice')]


async def test_a_cancel_says_who_and_why_in_its_query_too(path: Path) -> None:
    """`by` and `reason` can stand in the query, which comes before the body; what is wrong there is a 400."""
    async with serving(path) as (_, desk):
        desk.open['a-1'] = TriggerResult('cancelled')
        assert (await ask(path, 'DELETE', f'{SEND}/a-1?by=anil&reason=sent+twice', {'by': 'api'}))[0] == 200
        assert (await ask(path, 'DELETE', f'{SEND}/a-1'))[0] == 200
        assert desk.told == [('cancel', 'main', 'a-1', 'anil', 'sent twice'), ('cancel', 'main', 'a-1', 'api', '')]
        code, answer = await ask(path, 'DELETE', f'{SEND}/a-1?by=')
        assert (code, answer['hint']) == (400, 'a name of 1 to 100 characters')
        code, answer = await ask(path, 'DELETE', f'{SEND}/a-1?reasn=x')
        assert (code, answer['hint']) == (400, "did you mean 'reason'?")
        assert len(desk.told) == 2


async def test_a_trigger_that_cannot_be_cancelled(path: Path) -> None:
    """An unknown trigger is 404; one that was closed before, or is answered meanwhile, is 409 with its outcome."""
    async with serving(path) as (_, desk):
        code, answer = await ask(path, 'DELETE', f'{SEND}/a-0')
        assert (code, answer['error']) == (404, "main knows no trigger 'a-0'")
        assert '`trading-agent why main a-0`' in answer['hint']
        desk.told.clear()
        desk.results['a-1'] = TriggerResult('answered', 'NIFTY is up', 'offline', '2026-10-19-1')
        code, answer = await ask(path, 'DELETE', f'{SEND}/a-1')
        assert (code, answer['error'], answer['outcome']) == (409, 'a-1 was closed before as answered', 'answered')
        assert answer['answer'] == 'NIFTY is up'
        assert desk.told == []
        desk.results['a-2'] = TriggerResult('cancelled')
        code, answer = await ask(path, 'DELETE', f'{SEND}/a-2')
        assert (code, answer['outcome']) == (409, 'cancelled')
        desk.open['a-3'] = TriggerResult('answered', 'just now')
        code, answer = await ask(path, 'DELETE', f'{SEND}/a-3')
        assert (code, answer['outcome'], answer['answer']) == (409, 'answered', 'just now')


# -- reload --------------------------------------------------------------------------------------------------------


async def test_a_reload_answers_what_has_changed(path: Path) -> None:
    """POST reload answers what was added, changed and removed; a file that is refused is 400 with each problem."""
    async with serving(path) as (_, desk):
        assert await ask(path, 'POST', '/v1/reload') == (
            200,
            {'added': ['desk b'], 'changed': ['drain'], 'removed': []},
        )
        problems = [Problem('a.toml: x', 'there is no such key', 'remove it'), Problem('a.toml: y', 'is empty')]
        desk.failure = ConfigurationError(problems)
        assert await ask(path, 'POST', '/v1/reload') == (
            400,
            {
                'problems': [
                    {'where': 'a.toml: x', 'what': 'there is no such key', 'hint': 'remove it'},
                    {'where': 'a.toml: y', 'what': 'is empty', 'hint': ''},
                ],
                'error': 'a.toml: x: there is no such key (remove it); a.toml: y: is empty',
                'hint': 'remove it',
            },
        )


# -- the socket, start and stop ------------------------------------------------------------------------------------


async def test_the_socket_is_for_its_owner_whatever_the_umask(path: Path) -> None:
    """The socket is 0600 although the umask would let everybody in or shut the owner out."""
    for umask in (0, 0o777):
        old = os.umask(umask)
        try:
            async with serving(path):
                assert mode(path) == 0o600
        finally:
            os.umask(old)


def test_the_socket_is_never_open_to_others_not_even_for_a_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is made with its mode already: nobody slips in before it is set."""
    monkeypatch.setattr(Path, 'chmod', lambda *_: None)
    old = os.umask(0)
    try:
        http_server.bind_socket(path).close()
    finally:
        os.umask(old)
    assert mode(path) == 0o600


async def test_the_socket_can_be_shared_with_a_group(path: Path) -> None:
    """With a group the socket is 0660 and belongs to it; a group that does not exist is a configuration error."""
    async with serving(path, group=str(os.getgid())):
        assert mode(path) == 0o660
        assert owner_group(path) == os.getgid()
    with pytest.raises(ConfigurationError, match="there is no group 'no-such-group'"):
        await ControlServer(EventBus(), FakeDesk(EventBus()), path, group='no-such-group', run_id='run-1').run()
    assert gone(path)


async def test_a_path_that_is_too_long_for_a_socket_is_served(tmp_path: Path) -> None:
    """A socket whose path is longer than the 107 bytes of an address is bound and reached all the same."""
    folder = tmp_path / ('long' * 40)
    folder.mkdir()
    path = folder / 'control.sock'
    async with serving(path):
        assert (await ask(path, 'GET', '/v1/status'))[0] == 200
        assert mode(path) == 0o600
    assert gone(path)


async def test_a_stale_socket_is_replaced(path: Path) -> None:
    """A socket that a killed daemon left behind is no obstacle."""
    put('socket', path)
    assert not gone(path)
    async with serving(path):
        assert (await ask(path, 'GET', '/v1/status'))[0] == 200


@pytest.mark.parametrize('kind', ['file', 'folder', 'link'])
async def test_what_is_no_socket_is_not_removed(path: Path, kind: str) -> None:
    """A file, a folder or a link in the socket's place is an error that says so, and stays."""
    put(kind, path)
    with pytest.raises(StorageError, match='something else stands there') as caught:
        await ControlServer(EventBus(), FakeDesk(EventBus()), path, run_id='run-1').run()
    assert 'move it away' in caught.value.hint
    assert not gone(path)
    assert kind != 'link' or not gone(path.with_name('target'))


async def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    """A socket that cannot be made is a storage error that names it."""
    path = tmp_path / 'missing' / 'control.sock'
    with pytest.raises(StorageError, match=r'could not make the control socket .*missing/control\.sock'):
        await ControlServer(EventBus(), FakeDesk(EventBus()), path, run_id='run-1').run()


async def test_a_stop_ends_open_streams(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a stop each stream ends by itself with a line that says why, the server returns, and the socket is gone."""
    monkeypatch.setattr(http_server, 'GRACE_SECONDS', 600)
    async with asyncio.timeout(30), serving(path) as (server, _):
        calls = [
            await Call.start(path, 'GET', '/v1/events'),
            await Call.start(path, 'POST', WAIT, {'text': 'hello'}),
        ]
        for call in calls:
            assert await call.head() == 200
        server.stop()
        lines = [await call.lines() for call in calls]
        assert [last[-1]['error'] for last in lines] == ['the daemon is stopping'] * 2
        assert all(last[-1]['hint'] for last in lines)
    assert gone(path)
    for call in calls:
        assert await call.reader.read() == b''
        call.close()


async def test_a_request_that_is_being_answered_at_a_stop_is_answered(path: Path) -> None:
    """A trigger that is being stored when the stop comes still gets its receipt."""
    async with serving(path) as (server, desk):
        desk.gate = asyncio.Event()
        call = await Call.start(path, 'POST', SEND, {'text': 'hello', 'id': 'a-1'})
        running = state_of(server).tasks
        await until(lambda: len(running) == 1)
        server.stop()
        await until(lambda: not listening(server))
        desk.gate.set()
        assert await call.head() == 200
        assert (await call.json())['status'] == 'accepted'
        call.close()


async def test_a_client_that_does_not_read_holds_up_no_stop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is stuck on a client that reads nothing is cut off, as is a request that never comes whole."""
    monkeypatch.setattr(http_server, 'GRACE_SECONDS', 1)
    bus = EventBus(capacity=1 << 12)
    async with asyncio.timeout(30), serving(path, bus) as (server, desk):
        stuck = await Call.start(path, 'GET', '/v1/events?event=turn_output')
        half = await Call.start(path, 'POST', SEND)
        half.writer.write(f'POST {SEND} HTTP/1.1\r\nHost: desk\r\nContent-Length: 9\r\n\r\n{{'.encode())
        await half.head()
        state = state_of(server)
        await until(lambda: len(state.tasks) == 2)
        transport = stuck.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(100):
            desk.output('a-1', 'x' * 100_000)
        await until(lambda: any(is_stuck(connection) for connection in state.connections))
        server.stop()
    assert not state.connections
    assert not state.tasks
    stuck.close()
    half.close()


async def test_being_cancelled_is_a_stop(path: Path) -> None:
    """A server whose task is cancelled ends its streams and removes its socket before it returns."""
    desk = FakeDesk(bus := EventBus())
    server = ControlServer(bus, desk, path, run_id='run-1')
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        call = await Call.start(path, 'GET', '/v1/events')
        await call.head()
        state = state_of(server)
        tasks.cancel_scope.cancel()
    assert not state.tasks
    assert not state.connections
    assert (await call.lines())[-1]['error'] == 'the daemon is stopping'
    assert gone(path)
    call.close()


async def test_a_stop_before_the_start_is_not_forgotten(path: Path) -> None:
    """A server that was stopped before it ran says that it is ready, and returns."""
    server = ControlServer(EventBus(), FakeDesk(EventBus()), path, run_id='run-1')
    server.stop()
    server.stop()
    async with asyncio.timeout(30), anyio.create_task_group() as tasks:
        await tasks.start(server.run)
    assert gone(path)


async def test_requests_wait_until_the_desks_are_known(path: Path) -> None:
    """A trigger that comes while the daemon starts waits for its desk, and is not refused for good."""
    known = anyio.Event()
    async with serving(path, open_from=known) as (_, desk):
        desk.bus.detach('main')
        call = await Call.start(path, 'POST', '/v1/desks/main/triggers', {'text': 'x', 'id': 'early'})
        await until(lambda: known.statistics().tasks_waiting > 0)
        desk.bus.attach('main', desk.receive)
        known.set()
        assert await call.head() == 200
        assert (await call.json())['status'] == 'accepted'
        call.close()


async def test_requests_do_not_hold_up_a_start_that_fails(path: Path) -> None:
    """A daemon that stops before its desks are known says so to who waits."""
    async with serving(path, open_from=anyio.Event()) as (server, _):
        call = await Call.start(path, 'GET', '/v1/status')
        await until(lambda: bool(state_of(server).tasks))
        server.stop()
        assert await call.head() == 503
        assert (await call.json())['error'] == 'the daemon is stopping'
        call.close()


async def test_the_beat_is_that_of_the_serving_loop(path: Path) -> None:
    """`beats` is 0 before the server serves, then follows the event loop's clock, and stands still after."""
    async with serving(path) as (server, _):
        assert 0 < server.beats <= anyio.current_time()
        first = server.beats
        await until(lambda: server.beats > first)
    last = server.beats
    await asyncio.sleep(0.25)
    assert server.beats == last
    assert ControlServer(EventBus(), FakeDesk(EventBus()), path, run_id='run-1').beats == 0


async def test_signals_are_left_to_the_daemon(path: Path) -> None:
    """Serving changes no signal handler."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving(path):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_serving_blocks_the_event_loop_nowhere(path: Path) -> None:
    """No call of the server waits for the disk or a socket in the event loop's thread."""
    with blockbuster_ctx('trading_agent'):
        async with serving(path) as (_, desk):
            desk.on_trigger = lambda trigger: desk.close(trigger.id)
            assert (await ask(path, 'GET', '/v1/status'))[0] == 200
            assert (await stream(path, 'POST', WAIT, {'text': 'hello'}))[-1]['result']['outcome'] == 'answered'
