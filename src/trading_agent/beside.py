"""A task beside a piece of code, for as long as that runs."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc


@asynccontextmanager
async def beside(task: Callable[..., Coroutine[Any, Any, object]], *, wait: bool = False) -> AsyncIterator[None]:
    """Runs a task until the block ends. What the block raises is raised as it is, and not in a group.

    Args:
        task: The task; it ends by being cancelled.
        wait: Whether the block begins only once the task says that it has started (anyio's `task_status`).
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        if wait:
            await tasks.start(task)
        else:
            tasks.start_soon(task)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
