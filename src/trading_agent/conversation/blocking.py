"""Asynchronous code called from code that is not: in an event loop of its own, in the caller's thread."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from trading_agent.errors import LoopIsRunning

T = TypeVar('T')


def refuse_in_loop(name: str, instead: str) -> None:
    """Sees to it that no event loop runs in this thread.

    Args:
        name: What was called.
        instead: What is to be written there instead.

    Raises:
        LoopIsRunning: One does.
    """
    if _loop_runs():
        raise LoopIsRunning(f'{name} blocks, and an event loop runs here', f'write `{instead}`')


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine to its end, in a loop of its own. Ctrl-C cancels it and is raised then."""
    # With a factory the thread's own current loop stays what it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(make())


class Puller(Generic[T]):
    """Pulls items out of an asynchronous generator, one by one.

    All of the generator runs in one task, as its cancel scopes need it; between two items its loop stands still.

    Args:
        items: The generator. It is closed when it has ended or failed, and by `close`.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._runner: asyncio.Runner | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted: asyncio.Queue[asyncio.Future[T | None]] | None = None
        self._is_over = False

    def pull(self) -> T | None:
        """Returns the next item, or None where there is none.

        Raises:
            Exception: Whatever the generator raises.
            KeyboardInterrupt: Ctrl-C came while it was waited for; the generator is closed.
        """
        if self._is_over:
            return None
        self._runner = self._runner or asyncio.Runner(loop_factory=asyncio.new_event_loop)
        try:
            item = self._runner.run(self._next())
        except BaseException:
            self.close()
            raise
        if item is None:
            self.close()
        return item

    def close(self) -> None:
        """Ends the generator where it is, and the loop. May be called anywhere, and twice."""
        self._is_over = True
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if _loop_runs():  # when memory is tidied up, whose turn it is cannot be chosen
            thread = threading.Thread(target=self._end, args=(runner,))
            thread.start()
            thread.join()
        else:
            self._end(runner)

    def _end(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(self._stop())

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # who closes a stream does not want to know how it would have failed

    async def _next(self) -> T | None:
        if self._wanted is None:
            self._wanted = asyncio.Queue()
            self._task = asyncio.create_task(self._serve(self._wanted))
        wanted: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait(wanted)
        return await wanted

    async def _serve(self, queue: 'asyncio.Queue[asyncio.Future[T | None]]') -> None:
        async with aclosing(self._items) as items:
            while True:
                wanted = await queue.get()
                try:
                    item = await anext(items, None)
                except Exception as error:  # noqa: BLE001 - raised where it is waited for
                    if not wanted.done():
                        wanted.set_exception(error)
                    return
                except asyncio.CancelledError:
                    wanted.cancel()
                    raise
                if not wanted.done():
                    wanted.set_result(item)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
