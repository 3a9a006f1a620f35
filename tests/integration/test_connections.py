"""Connections to the control socket: bounded in number and in time, whatever their clients do."""

import asyncio
import json
import resource
from pathlib import Path

import pytest
from test_control import Call, ask, serving, state_of, until

from trading_agent.daemon.sources import connections, control
from trading_agent.daemon.sources.connections import MOST_CONNECTIONS, most_connections

STATUS = b'GET /v1/status HTTP/1.1\r\nHost: desk\r\n\r\n'
SEND = b'POST /v1/desks/main/triggers HTTP/1.1\r\nHost: desk\r\nContent-Length: 100\r\n\r\n{"text": '


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket is."""
    return tmp_path / 'control.sock'


async def connected(path: Path, data: bytes = b'') -> Call:
    """Opens a connection and sends something on it."""
    call = Call(*await asyncio.open_unix_connection(path))
    call.writer.write(data)
    await call.writer.drain()
    return call


async def rest(call: Call) -> bytes:
    """Returns what comes until the connection is closed."""
    async with asyncio.timeout(30):
        try:
            return await call.reader.read()
        except ConnectionError:
            return b''


async def send_on(call: Call) -> None:
    """Sends and sends."""
    async with asyncio.timeout(30):
        while True:
            call.writer.write(b'x' * 10_000)
            await call.writer.drain()


@pytest.mark.parametrize('data', [b'', b'GET /v1/st', STATUS[:-2] + b'X: y\r\n'])
async def test_a_request_that_never_comes(path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """A client that sends nothing, or half a head, is told 408 when its time is over, and let go."""
    monkeypatch.setattr(connections, 'REQUEST_SECONDS', 0.2)
    async with serving(path) as (server, _):
        call = await connected(path, data)
        head, _, body = (await rest(call)).partition(b'\r\n\r\n')
        assert head.startswith(b'HTTP/1.1 408 ')
        assert json.loads(body)['hint'] == 'it has 0.2 s'
        await until(lambda: not state_of(server).connections)
        call.close()


async def test_a_byte_now_and_then_gains_no_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole request: a byte at a time does not begin it anew."""
    monkeypatch.setattr(connections, 'REQUEST_SECONDS', 0.3)
    async with serving(path):
        call = await connected(path)
        ended = asyncio.ensure_future(rest(call))
        for byte in STATUS * 100:  # for which it would take a minute
            if ended.done():
                break
            call.writer.write(bytes([byte | 0x20]))
            await asyncio.sleep(0.01)
        else:
            pytest.fail('it went on for as long as bytes came')
        assert (await ended)[:13] in (b'HTTP/1.1 408 ', b'')  # nothing, where a byte on its way met the closed end
        call.close()


async def test_a_body_that_never_comes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose body stops coming is given up, and nothing of it is sent to the desk."""
    monkeypatch.setattr(connections, 'REQUEST_SECONDS', 0.2)
    async with serving(path) as (server, desk):
        call = await connected(path, SEND)
        assert await rest(call) == b''
        await until(lambda: not state_of(server).tasks)
        assert desk.received == []
        assert (await ask(path, 'GET', '/v1/status'))[0] == 200
        call.close()


async def test_a_body_that_nobody_wants(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on sending after it was told that it is too much is cut off in the end."""
    monkeypatch.setattr(connections, 'REQUEST_SECONDS', 0.3)
    async with serving(path, max_body_bytes=1000):
        call = await connected(path, SEND.replace(b': 100\r', b': 999999999\r'))
        with pytest.raises(ConnectionError):
            await send_on(call)
        call.close()


async def test_an_answer_may_take_longer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the request alone: whoever waits for an answer, or follows events, is left in peace."""
    monkeypatch.setattr(connections, 'REQUEST_SECONDS', 0.1)
    async with serving(path) as (_, desk):
        waiting = await Call.start(path, 'POST', '/v1/desks/main/triggers?wait=true', {'text': 'x', 'id': 'a'})
        assert await waiting.head() == 200
        await waiting.chunk()
        await asyncio.sleep(0.5)
        desk.close('a')
        assert (await waiting.lines())[-1]['result']['outcome'] == 'answered'
        waiting.close()


async def test_who_is_idle_makes_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many connections, the one that is idle for longest is closed, and the new one served."""
    monkeypatch.setattr(connections, 'most_connections', lambda: 3)
    async with serving(path) as (server, _):
        streams = [await Call.start(path, 'GET', '/v1/events') for _ in range(2)]
        for stream in streams:
            assert await stream.head() == 200
        idle = [await connected(path)]
        await until(lambda: len(state_of(server).connections) == 3)
        for _ in range(5):
            assert (await ask(path, 'GET', '/v1/status'))[0] == 200
            assert await rest(idle[-1]) == b''
            idle.append(await connected(path))
        for call in [*streams, *idle]:
            call.close()


async def test_where_all_are_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is idle the new one is told to come again, and is served once one has left."""
    monkeypatch.setattr(connections, 'most_connections', lambda: 2)
    async with serving(path) as (server, _):
        streams = [await Call.start(path, 'GET', '/v1/events') for _ in range(2)]
        for stream in streams:
            assert await stream.head() == 200
        status, told = await ask(path, 'GET', '/v1/status')
        assert (status, told['error'], told['hint']) == (
            503, 'there are too many connections', 'close some, or ask again',
        )  # fmt: skip
        streams[0].close()
        await until(lambda: len(state_of(server).connections) == 1)
        assert (await ask(path, 'GET', '/v1/status'))[0] == 200
        streams[1].close()


def test_no_more_than_a_quarter_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few files the process may open, three quarters of them are left for the desks."""
    for files, most in ((64, 16), (3, 1), (1 << 20, MOST_CONNECTIONS), (resource.RLIM_INFINITY, MOST_CONNECTIONS)):
        monkeypatch.setattr(resource, 'getrlimit', lambda _: (files, files))  # noqa: B023 - called before the next one
        assert most_connections() == most


async def test_many_bodies_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all clients together are sending is bounded: who comes beyond that is told to try again."""
    monkeypatch.setattr(control, 'MOST_BYTES_AT_ONCE', 1000)
    async with serving(path) as (_, desk):
        half = [await connected(path, SEND.replace(b': 100\r', b': 500\r') + b'"' + b'x' * 390) for _ in range(2)]
        status = 0
        async with asyncio.timeout(30):
            while status != 503:  # until both halves have come
                status, told = await ask(path, 'POST', '/v1/desks/main/triggers', {'text': 'y' * 300})
        assert 'try' in told['hint'] or 'again' in told['hint']
        for call in half:
            call.writer.write(b'x' * 98 + b'"}')
            assert await call.head() == 200
            call.close()
        assert (await ask(path, 'POST', '/v1/desks/main/triggers', {'text': 'z' * 300}))[0] == 200
        assert any(trigger.text.startswith('xxx') for trigger in desk.received)


async def test_a_source_is_bounded(path: Path) -> None:
    """A source of 128 characters is taken, a longer one refused with what is wrong."""
    async with serving(path):
        for length, status in ((128, 200), (129, 400)):
            answer = await ask(path, 'POST', '/v1/desks/main/triggers', {'text': 'x', 'source': 's' * length})
            assert answer[0] == status
        assert 'source' in answer[1]['error']
        assert '128' in answer[1]['hint']
