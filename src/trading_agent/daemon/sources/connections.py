"""Connections to the control socket, bounded in number and in time, so that no client holds up another one."""

import asyncio
import resource
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST_CONNECTIONS = 256
"""How many connections are open at once. It is never more than a quarter of the files that the process may open."""

REQUEST_SECONDS = 30.0
"""How long a client may take for a whole request, from its connection or from the request's first byte on."""

MAX_HEAD_BYTES = 16 << 10
"""How much of a request's head, its first line and its headers, is there at most while more of it is awaited."""

_AWAITED = (h11.IDLE, h11.SEND_BODY)


def most_connections() -> int:
    """Returns how many connections may be open, as many files as the process may open now."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, files // 4))


class Connection(H11Protocol):
    """One client's connection.

    Where there are too many, the one that has been idle for longest makes room; where none is idle, the new one is
    told to come again. A request that does not come whole in time is given up.
    """

    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as in the base class
        """Takes the connection, or turns it away."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self._open) > most_connections() and not self._make_room():
            self._turn_away(503, 'there are too many connections', 'close some, or ask again')
            return
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    @property
    def _open(self) -> list['Connection']:
        own = (other for other in self.connections if isinstance(other, Connection))
        return [other for other in own if not other.transport.is_closing()]

    def _make_room(self) -> bool:
        idle = [other for other in self._open if other.is_idle and other is not self]
        if idle:
            min(idle, key=lambda other: other._since).transport.abort()  # noqa: SLF001 - one of its own kind
        return bool(idle)

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        cycle = cast('RequestResponseCycle | None', self.cycle)
        return cycle is None or cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Takes what the client sends, and watches how long it takes for it."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state not in _AWAITED:
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def on_response_complete(self) -> None:
        """Notes that the connection is idle from now on."""
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of it."""
        self._forget_deadline()
        super().connection_lost(exc)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.is_idle:
            self._turn_away(408, 'the request did not come whole in time', f'it has {REQUEST_SECONDS:g} s')
        else:
            self.transport.abort()  # whoever waits for the rest of its body is told that the client has left

    def _turn_away(self, status: int, error: str, hint: str) -> None:
        body = f'{{"error":"{error}","hint":"{hint}"}}'.encode()
        reason = {408: 'Request Timeout', 503: 'Service Unavailable'}[status]
        fields = f'content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n'
        self.transport.write(f'HTTP/1.1 {status} {reason}\r\n{fields}'.encode() + body)
        self.transport.close()
