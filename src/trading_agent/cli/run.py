"""`trading-agent run`: the daemon in the foreground, under systemd or on a terminal."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

import anyio
import click

from trading_agent import config
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.loop_monitor import LoopMonitor
from trading_agent.errors import TradingAgentError
from trading_agent.logs import Log
from trading_agent.systemd import Notifier

_LOGGER = logging.getLogger('trading_agent')

GIVE_UP_SECONDS = 20.0
"""How long after the drain a stop may take before the process ends itself, for code that cannot be cut off."""


@click.command('run')
@global_options
@pass_options
def run_command(options: Options) -> None:
    """Run the daemon in the foreground.

    It logs to stderr, one JSON object a line. SIGTERM or Ctrl-C ends it: running turns get the time that the
    configuration calls `drain`; a second signal skips that. SIGHUP reads the configuration again.
    """
    read_config = partial(config.load, options.config, options.workspace)
    settings = read_config()
    faulthandler.enable(2)  # so that a crash in a library's C code says in which of our lines it was
    sys.exit(anyio.run(_run, settings, read_config))


async def _run(settings: config.Config, read_config: Callable[[], config.Config]) -> int:
    daemon = Daemon(settings, notifier=Notifier(), read_config=read_config)
    log = Log(daemon.run_id, settings.log_level, log_content=settings.log_content)
    daemon.on_config = log.configure
    log.capture_logging()
    failed = False
    told: TradingAgentError | None = None
    async with anyio.create_task_group() as tasks:
        await tasks.start(log.follow, daemon.bus)
        await tasks.start(LoopMonitor(log.tell_now, daemon.bus.publish).run)
        try:
            await _until_stopped(daemon, log)
        except* TradingAgentError as group:
            told = _first(group)
        except* Exception:
            _LOGGER.critical('a part of the daemon that it cannot do without has failed', exc_info=True)
            failed = True
        tasks.cancel_scope.cancel()
    if told is not None:
        raise told
    return int(failed)


async def _until_stopped(daemon: Daemon, log: Log) -> None:
    loop = asyncio.get_running_loop()
    asked = threading.Event()
    given_up = partial(_give_up, asked, daemon.config.drain + GIVE_UP_SECONDS, log)
    # A thread, for the event loop may be what does not end; begun now, for a signal handler must not begin one.
    threading.Thread(target=given_up, name='give-up', daemon=True).start()

    def stop(number: int, _: FrameType | None) -> None:
        asked.set()
        with suppress(RuntimeError):  # the loop has ended, and the process is about to
            loop.call_soon_threadsafe(daemon.stop, signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Ours from the start on: a background job of a shell begins with SIGINT ignored. Not by the event loop, which
        # would not run it while somebody's code blocks the loop.
        signal.signal(number, stop)
    loop.add_signal_handler(signal.SIGHUP, daemon.ask_reload)
    async with daemon:
        await daemon.stop_asked()


def _give_up(asked: threading.Event, seconds: float, log: Log) -> None:
    asked.wait()
    threading.Event().wait(seconds)
    log.last_words('the stop took too long: something cannot be cut off, and the process ends itself')
    os._exit(1)


def _first(group: BaseExceptionGroup[TradingAgentError]) -> TradingAgentError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TradingAgentError)  # noqa: S101 - the group holds no others
    return error
