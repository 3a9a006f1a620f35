"""Clients of the control socket that do what no client should: malformed, huge, slow, many, and gone."""

import json
import os
import random
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from damage import PIECES, VALUES, Damage

PATIENCE_SECONDS = 30.0
"""How long anybody else may have to wait for an answer."""

ODD_NAMES = [
    '../../../../etc/passwd', '/etc/passwd', '/', '.', '..', 'a/b', 'a\\b', '-rf', '~', '*', '%2e%2e%2f', 'a\nb',
    'a\0b', '\ufeffa', '\u202egpj', 'न', '🙂' * 20, 'x' * 128, 'x' * 129, 'x' * 5000, '', ' ', "';--", 'con',
    '$(touch planted)', 'desks/main/Memory.md', '../main/Memory.md', '.tmp', '\x7f', '\u2028',
]  # fmt: skip
"""Names that are paths, are none, or are too long, for triggers, desks, backends and sources."""


class Answer(NamedTuple):
    """What came back: the status, 0 where nothing did, and all the bytes behind the head."""

    status: int
    body: bytes


def connect(path: Path, seconds: float = PATIENCE_SECONDS) -> socket.socket:
    """Connects to the socket, however long its path is."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(seconds)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        client.connect(f'/proc/self/fd/{folder}/{path.name}')
    except OSError:
        client.close()
        raise
    finally:
        os.close(folder)
    return client


def request(method: str, target: str, body: bytes = b'', *headers: str) -> bytes:
    """Returns a request as it should be."""
    fields = [f'{method} {target} HTTP/1.1', 'Host: desk', f'Content-Length: {len(body)}', *headers]
    return '\r\n'.join([*fields, '', '']).encode('utf-8', 'surrogatepass') + body


def trigger(fields: Mapping[str, Any], desk: str = 'main', query: str = '') -> bytes:
    """Returns a request that sends a trigger."""
    return request('POST', f'/v1/desks/{desk}/triggers{query}', json.dumps(fields).encode())


def say(path: Path, *pieces: bytes, end: bool = True) -> Answer:
    """Sends bytes, and returns what comes back until the connection is closed, or nothing more comes for a while.

    Raises:
        TimeoutError: Nothing came, and the connection stays open.
    """
    with connect(path) as client:
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                client.sendall(piece)
            if end:
                client.shutdown(socket.SHUT_WR)
        return heard(client)


def heard(client: socket.socket) -> Answer:
    """Returns the first answer that comes."""
    data = b''
    with suppress(ConnectionResetError):
        while more := client.recv(1 << 16):
            data += more
            head, found, body = data.partition(b'\r\n\r\n')
            length = re.search(rb'content-length: (\d+)', head.lower())
            if found and length is not None and len(body) >= int(length[1]):
                break
    status = re.match(rb'HTTP/1\.1 (\d{3}) ', data)
    return Answer(int(status[1]) if status else 0, data.partition(b'\r\n\r\n')[2])


def status(path: Path) -> Any:  # noqa: ANN401 - as JSON has it
    """Asks for the status, as a client who does nothing wrong."""
    answer = say(path, request('GET', '/v1/status', b'', 'Connection: close'))
    return json.loads(answer.body) if answer.status == 200 else None


# -- one that is wrong in itself -----------------------------------------------------------------------------------

_SOUND = [
    request('GET', '/v1/status'),
    request('GET', '/v1/backends'),
    trigger({'text': 'NIFTY crossed 26000', 'priority': 'person', 'source': 'outside', 'not_before': None}),
    trigger({'text': 'now', 'expires_at': '2099-01-01T00:00:00Z'}, 'main', '?wait=false'),
    request('DELETE', '/v1/desks/main/triggers/unknown?by=asha&reason=none'),
    request('POST', '/v1/desks/main/pause', b'{"by": "asha", "reason": "lunch", "now": false}'),
    request('POST', '/v1/desks/main/resume', b'{"by": "asha"}'),
    request('POST', '/v1/backends/offline/test', b'{"by": "asha"}'),
    request('POST', '/v1/nothing'),
]


def malformed(chance: random.Random) -> bytes:
    """Returns a request that is damaged: somewhere, or in its JSON and else as it should be."""
    sound = chance.choice(_SOUND)
    head, _, body = sound.partition(b'\r\n\r\n')
    if body and chance.random() < 0.5:
        how: Any = chance.choice(['value', 'odd key', 'key twice', 'no key', 'insert', 'instead of a line', 'flip'])
        what = chance.choice(sorted(PIECES if how in ('insert', 'instead of a line') else VALUES))
        damaged = Damage('', how, chance.random(), what, chance.randrange(8)).of(body) or b''
        return re.sub(rb'Content-Length: \d+', b'Content-Length: %d' % len(damaged), head) + b'\r\n\r\n' + damaged
    how = chance.choice(
        ['cut', 'cut out', 'flip', 'insert', 'overwrite', 'line before', 'instead of a line', 'line twice']
    )
    what = chance.choice([name for name in sorted(PIECES) if not name.startswith(('open', 'brackets'))])
    return Damage('', how, chance.random(), what, chance.randrange(1, 40)).of(sound) or b''


def odd_requests() -> Iterator[tuple[str, list[bytes]]]:
    """Yields requests that are wrong in a way of their own, each with its name."""
    post = b'POST /v1/desks/main/triggers HTTP/1.1\r\nHost: desk\r\n'
    chunked = post + b'Transfer-Encoding: chunked\r\n\r\n'
    yield 'nothing at all', []
    yield 'NULs', [b'\0' * 5000]
    yield 'bytes of no kind', [bytes(range(256)) * 40]
    yield 'the beginning of HTTP/2', [b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0']
    yield 'TLS', [b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + b'\0' * 200]
    yield 'a websocket', [request('GET', '/v1/status', b'', 'Upgrade: websocket', 'Connection: Upgrade')]
    yield 'a long header', [b'GET /v1/status HTTP/1.1\r\nHost: desk\r\nX: ' + b'x' * (1 << 20) + b'\r\n\r\n']
    yield '10,000 headers', [b'GET /v1/status HTTP/1.1\r\nHost: desk\r\n' + b'X: y\r\n' * 10_000 + b'\r\n']
    yield 'a long target', [request('GET', '/v1/' + 'x' * (1 << 20))]
    yield 'a header without an end', [b'GET /v1/status HTTP/1.1\r\nX: ' + b'x' * 5000]
    yield 'no length', [post + b'\r\n{"text": "x"}']
    yield 'two lengths', [post + b'Content-Length: 3\r\nContent-Length: 13\r\n\r\n{"text": "x"}']
    yield 'a length below zero', [post + b'Content-Length: -1\r\n\r\n{"text": "x"}']
    yield 'a length that is none', [post + b'Content-Length: 1e3\r\n\r\n{"text": "x"}']
    yield 'a length beyond all', [post + b'Content-Length: ' + b'9' * 400 + b'\r\n\r\n{"text": "x"}']
    yield 'too short a body', [post + b'Content-Length: 5000\r\n\r\n{"text": "x"}']
    yield '100 MB that never come', [post + b'Content-Length: 104857600\r\n\r\n{"text": "']
    yield '100 MB', [post + b'Content-Length: 104857600\r\n\r\n{"text": "', *[b'x' * (1 << 20)] * 100]
    yield '100 MB in chunks', [chunked, *[b'100000\r\n' + b'x' * (1 << 20) + b'\r\n'] * 100]
    yield 'chunks that are none', [chunked + b'zz\r\n{"text": "x"}\r\n0\r\n\r\n']
    yield 'a chunk without an end', [chunked + b'ffffffff\r\n{"text": "x"}']
    yield 'a chunk beyond all', [chunked + b'f' * 100 + b'\r\nx']
    yield 'a thousand chunks', [chunked + b'1\r\nx\r\n' * 1000 + b'0\r\n\r\n']
    yield 'many at once', [request('GET', '/v1/status') * 50]
    yield 'many half ones', [request('GET', '/v1/status') * 5 + b'GET /v1/sta']
    yield 'a target of another server', [request('GET', 'http://example.com/v1/status')]
    yield 'a target outside', [request('GET', '/v1/../../../etc/passwd')]
    yield 'a method of no kind', [request('BREW', '/v1/status')]
    yield 'what a proxy is asked', [request('CONNECT', 'example.com:443')]
    yield 'a version to come', [b'GET /v1/status HTTP/9.9\r\nHost: desk\r\n\r\n']
    yield 'no host', [b'GET /v1/status HTTP/1.1\r\n\r\n']
    yield 'more than is waited for', [request('POST', '/v1/reload', b'', 'Expect: 100-continue')]
    yield 'a text that is too long', [trigger({'text': 'x' * ((1 << 20) + 1)})]
    yield (
        'a text of escapes',
        [request('POST', '/v1/desks/main/triggers', b'{"text": "' + b'\\u0041' * (1 << 18) + b'"}')],
    )
    yield 'deep JSON', [request('POST', '/v1/desks/main/triggers', b'{"text": ' + PIECES['brackets'] + b'}')]
    yield 'the last instant', [trigger({'text': 'x', 'not_before': '9999-12-31T23:59:59.999999Z'})]
    yield 'the first instant', [trigger({'text': 'x', 'expires_at': '0001-01-01T00:00:00+00:00'})]


def odd_names() -> Iterator[tuple[str, bytes]]:
    """Yields requests with names that are paths, in each place where a name can stand."""
    for number, name in enumerate(ODD_NAMES):
        quoted = ''.join(f'%{byte:02x}' for byte in name.encode())
        yield f'the id {name[:40]!r}', trigger({'text': f'odd name {number}', 'id': name})
        yield f'the source {name[:40]!r}', trigger({'text': f'odd source {number}', 'source': name})
        yield f'the desk {name[:40]!r}', trigger({'text': 'odd desk'}, quoted)
        yield f'to cancel {name[:40]!r}', request('DELETE', f'/v1/desks/main/triggers/{quoted}')
        yield f'to pause {name[:40]!r}', request('POST', f'/v1/desks/{quoted}/pause', json.dumps({'by': name}).encode())
        yield f'the backend {name[:40]!r}', request('POST', f'/v1/backends/{quoted}/test')


# -- those that stay -----------------------------------------------------------------------------------------------


@contextmanager
def staying(path: Path, count: int, data: bytes = b'') -> Iterator[list[socket.socket]]:
    """Opens connections, sends something on each of them, and leaves it at that until the block ends."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(connect(path))
            with suppress(OSError):
                client.sendall(data)
            clients.append(client)
        yield clients


def closed(clients: Sequence[socket.socket], seconds: float) -> int:
    """Returns how many of these are closed by the other side within a time."""
    until = time.monotonic() + seconds
    return sum(_is_closed(client, until) for client in clients)


def _is_closed(client: socket.socket, until: float) -> bool:
    while True:
        client.settimeout(max(0.001, until - time.monotonic()))
        try:
            if not client.recv(1 << 16):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True


def drip(client: socket.socket, data: bytes, seconds: float, still: Callable[[], bool]) -> bool:
    """Sends a byte at a time for so long, or until the other side has had enough; returns whether it has."""
    for at in range(int(seconds / 0.05)):
        try:
            client.send(data[at % len(data) :][:1])
        except OSError:
            return True
        if not still():
            return False
        time.sleep(0.05)  # what is tried: a client that is slow
    return False
