"""Processes that are forked from one that has loaded the program, and has no threads."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from typing import Any

from planted import planted

DEADLINE_SECONDS = 60.0
_PDEATHSIG = 1


def _begin(plant: str, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
    """Runs in a child: it dies with whoever forked it."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    with planted(plant):
        function(*arguments)


class Children:
    """Processes that are forked from one that has loaded the program, and has no threads.

    Args:
        plant: The fault that is planted into each.
    """

    def __init__(self, plant: str) -> None:
        self._context = multiprocessing.get_context('forkserver')
        self._plant = plant
        self._started: list[ForkServerProcess] = []

    def start(self, function: Callable[..., None], *arguments: Any) -> ForkServerProcess:  # noqa: ANN401
        """Starts one."""
        process = self._context.Process(target=_begin, args=(self._plant, function, *arguments))
        process.start()
        self._started.append(process)
        return process

    def start_talking(self, function: Callable[..., None], *arguments: Any) -> tuple[ForkServerProcess, Connection]:  # noqa: ANN401
        """Starts one that is given the other end of a pipe last."""
        here, there = self._context.Pipe()
        process = self.start(function, *arguments, there)
        there.close()
        return process, here

    def barrier(self, parties: int) -> Barrier:
        """Returns a barrier for some of them."""
        return self._context.Barrier(parties)

    def end(self) -> None:
        """Ends those that are left."""
        for process in self._started:
            process.kill()
            process.join()
            process.close()


@contextmanager
def children(plant: str) -> Iterator[Children]:
    """Yields what starts processes; none of them outlives the block.

    Args:
        plant: The fault that is planted into each.
    """
    multiprocessing.get_context('forkserver').set_forkserver_preload(['races'])
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))  # what is loaded ahead is found by it
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop('PYTHONPATH')
        if before is not None:
            os.environ['PYTHONPATH'] = before
    started = Children(plant)
    try:
        yield started
    finally:
        started.end()


def heard(pipe: Connection, what: object) -> Any:  # noqa: ANN401 - whatever was said
    """Returns what a process says next.

    Raises:
        TimeoutError: It says nothing.
        EOFError: It has ended.
    """
    if not pipe.poll(DEADLINE_SECONDS):
        raise TimeoutError(what)
    return pipe.recv()
