"""The log: one JSON object a line on stderr, one line for every event but `turn_output`.

The names and fields are an interface, by which the box is monitored. Under systemd each line begins with its
priority, as sd-daemon(3) describes.
"""

import logging
import os
import select
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import msgspec
import structlog

from trading_agent.clock import utc_text
from trading_agent.config import Config, LogLevel
from trading_agent.credentials import secrets_in, without_secrets
from trading_agent.event_bus import EventBus
from trading_agent.events import CONTENT_FIELDS, Event, Stamped
from trading_agent.log_repeats import Repeats
from trading_agent.trigger import storable

MAX_LINE_BYTES = 16 << 10
_LONGEST_VALUE = 2000
_PRIORITIES = {'debug': 7, 'info': 6, 'warning': 4, 'error': 3, 'critical': 2}
LINES_AT_ONCE = 64
"""How many lines are made before the loop goes on with other things: a flood of events must not hold up a turn."""

REPEATS_SECONDS = 5.0
"""How often it is looked whether a fault that repeats is to be told again."""

_RANKS = ('debug', 'info', 'warning', 'error', 'critical')


def log_record(stamped: Stamped, run_id: str, log_content: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
    """Returns an event as the fields of its line, in their order.

    Args:
        stamped: The event.
        run_id: The daemon's run.
        log_content: Whether what was said is shown, and not only its length.
    """
    fields = msgspec.to_builtins(stamped.event)
    record = {
        'timestamp': utc_text(stamped.timestamp)[:-4] + 'Z',
        'level': stamped.event.level,
        'event': fields.pop('event'),
        'run_id': run_id,
        'seq': stamped.seq,
    }
    for name, value in fields.items():
        if name in CONTENT_FIELDS and not log_content:
            record[f'{name}_length'] = len(value)
        else:
            record[name] = value
    return record


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Returns a line of under 16 KiB, without its newline: long values are cut, and say so."""
    try:
        line = msgspec.json.encode(record)
    except UnicodeEncodeError:
        return encode_record({name: storable(v) if isinstance(v, str) else str(v) for name, v in record.items()})
    longest = _LONGEST_VALUE
    while len(line) >= MAX_LINE_BYTES and longest:
        line = msgspec.json.encode({name: _cut(value, longest) for name, value in record.items()})
        longest //= 2
    if len(line) >= MAX_LINE_BYTES:  # it is not one value that is long: there are very many
        kept = {name: _cut(str(record.get(name, '')), 200) for name in ('timestamp', 'level', 'event', 'run_id')}
        line = msgspec.json.encode(kept | {'error': f'{len(record)} fields are too many for a line'})
    return line


def _cut(value: object, longest: int) -> object:
    if isinstance(value, str) and len(value) > longest:
        return f'{value[:longest]}… ({len(value)} characters)'
    if isinstance(value, list) and len(value) > (items := longest // 20):
        return [*(_cut(item, longest // 10) for item in value[:items]), f'… ({len(value)} in all)']
    if isinstance(value, dict):
        return _cut(str(value), longest)
    return value


class Log:
    """Writes events, and what libraries log by the standard `logging`, to one stream.

    Args:
        run_id: The daemon's run.
        level: The lowest level that is written.
        log_content: Whether what was said is shown.
        stream: Where the lines go; None for stderr.
        journald: Whether lines begin with their priority; None to find out from JOURNAL_STREAM (systemd.exec(5)).
    """

    def __init__(
        self,
        run_id: str,
        level: LogLevel = 'info',
        *,
        log_content: bool = False,
        stream: BinaryIO | None = None,
        journald: bool | None = None,
    ) -> None:
        self._run_id = run_id
        self._stream = sys.stderr.buffer if stream is None else stream
        self._journald = _reads_journald() if journald is None else journald
        self._lock = threading.Lock()
        self._repeats = Repeats()
        self._told_now: dict[int, Event] = {}
        self._lowest = _RANKS.index(level)
        self._log_content = log_content
        self._secrets: frozenset[str] = frozenset()

    def configure(self, config: Config) -> None:
        """Writes from now on what a configuration says, and never a secret that it names."""
        self._lowest = _RANKS.index(config.log_level)
        self._log_content = config.log_content
        options: list[Mapping[str, Any]] = [backend.options for backend in config.backends.values()]
        options += [component.options for component in config.components]
        options += [table for desk in config.desks for server in desk.mcp_servers for table in server.secret_tables]
        named = frozenset().union(*map(secrets_in, options))
        # As they stand in a line of JSON. Those of before stay: what holds one may still run.
        self._secrets |= named | {msgspec.json.encode(secret).decode()[1:-1] for secret in named}

    async def follow(
        self, bus: EventBus, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Writes what is published from the oldest event on, until it is cancelled; then what is left.

        The writing is done in a thread: a reader of the log that stalls holds up nothing else.
        """
        own_thread = anyio.CapacityLimiter(1)  # the log goes on where all others are taken
        with bus.subscribe(since='oldest', name='log', keeps=True) as events:
            task_status.started()
            try:
                while True:
                    batch: list[Stamped] = []
                    with anyio.move_on_after(REPEATS_SECONDS):
                        batch = await events.stamped(LINES_AT_ONCE)
                    data = b''.join([*self._lines(batch), *map(self._line, self._repeats.due())])
                    # Shielded, so that a batch is never written in part or twice.
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(self._put, data, limiter=own_thread)
                    events.kept()
            finally:
                while batch := events.ready():
                    self._put(b''.join(self._lines(batch)))
                self._put(b''.join(map(self._line, self._repeats.due(everything=True))))

    def tell_now(self, event: Event) -> None:
        """Writes an event from any thread, while the loop cannot; it is not written again when the bus tells it."""
        self._told_now[id(event)] = event
        self._put(self._line(log_record(Stamped(0, datetime.now(UTC), event), self._run_id, self._log_content)))

    def _lines(self, batch: list[Stamped]) -> Iterator[bytes]:
        for stamped in batch:
            event = stamped.event
            if not event.logged or self._told_now.pop(id(event), None) is event:
                continue
            try:
                line = self._event_line(stamped)
            except Exception as error:  # noqa: BLE001 - an event of somebody's own may hold anything
                line = self._line(self._unwritable(stamped, error))
            if line is not None:
                yield line

    def _event_line(self, stamped: Stamped) -> bytes | None:
        """Returns an event's line; None where it is not to be written, or not now."""
        if _RANKS.index(stamped.event.level) < self._lowest:
            return None
        record = log_record(stamped, self._run_id, self._log_content)
        line = self._line(record)
        return line if not stamped.event.gathered or self._repeats.take(record) else None

    def _unwritable(self, stamped: Stamped, error: Exception) -> dict[str, Any]:
        what = f'an event {type(stamped.event).__qualname__} cannot be written: {type(error).__name__}: {error}'
        return {
            'timestamp': utc_text(stamped.timestamp)[:-4] + 'Z',
            'level': 'error',
            'event': 'log',
            'run_id': self._run_id,
            'seq': stamped.seq,
            'error': what,
        }

    def _line(self, record: Mapping[str, Any]) -> bytes:
        prefix = f'<{_PRIORITIES[record["level"]]}>'.encode() if self._journald else b''
        line = encode_record(record)
        if self._secrets:
            line = without_secrets(line.decode(), self._secrets).encode()
        return prefix + line + b'\n'

    def _put(self, data: bytes) -> None:
        with self._lock:
            try:
                self._stream.write(data)
                self._stream.flush()
            except (OSError, ValueError):
                # Whoever read the log is gone. There is no other place to say so, and the desks go on.
                return

    def last_words(self, error: str) -> None:
        """Writes a line also while another thread is stuck in writing one; none where nobody reads it."""
        now = utc_text(datetime.now(UTC))[:-4] + 'Z'
        record = {'timestamp': now, 'level': 'critical', 'event': 'log', 'run_id': self._run_id, 'error': error}
        with suppress(OSError, ValueError):
            if select.select([], [self._stream], [], 0)[1]:
                os.write(self._stream.fileno(), self._line(record))

    def capture_logging(self) -> logging.Handler:
        """Lets what libraries log come out as lines of the same shape, under the event `log`."""
        handler = _Handler(self._put_foreign)
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name],
                processors=[
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.TimeStamper(fmt='iso', utc=True),
                    structlog.processors.format_exc_info,
                    self._foreign,
                ],
            )
        )
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=True)
        return handler

    def _foreign(self, _: object, __: str, record: structlog.typing.EventDict) -> str:
        level = record.get('level', 'warning')
        ordered = {
            'timestamp': record['timestamp'],
            'level': level if level in _PRIORITIES else 'warning',
            'event': 'log',
            'run_id': self._run_id,
            'logger': record.get('logger'),
            'error': str(record.get('event', '')),
        }
        if 'exception' in record:
            ordered['exception'] = record['exception']
        return self._line(ordered).decode()

    def _put_foreign(self, line: str) -> None:
        self._put(line.encode())


class _Handler(logging.Handler):
    """Hands formatted records to a function."""

    def __init__(self, put: Any) -> None:  # noqa: ANN401 - a callable of one text
        super().__init__()
        self._take = put

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(self.format(record))
        except Exception:  # noqa: BLE001 - what logging itself does with a record that cannot be formatted
            self.handleError(record)


def _reads_journald() -> bool:
    """Whether stderr is the socket that systemd says it is, device and inode."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get('JOURNAL_STREAM') == f'{status.st_dev}:{status.st_ino}'
