"""Runs a program for the daemon, and ends all that came of it once the daemon lets go, even where it was killed.

The daemon runs this file by its path, in a Python of its own that has the standard library alone, and holds the other
end of a pipe: the lifeline. A program such as a CLI agent starts others in sessions of their own, which no signal to
its process group reaches. This process is the one that the kernel hands them to when their parent dies
(PR_SET_CHILD_SUBREAPER, prctl(2)), so that it finds and ends every one of them before it ends itself.

    process_guard.py LIFELINE GRACE PASSED PROGRAM [ARGUMENT…]

LIFELINE is the number of the descriptor, GRACE for how many seconds the program may go on after it was asked to end,
PASSED the descriptors that it is given, with commas. It has the guard's own stdin and stdout. The last of what it says
on stderr is passed on when it has ended. The exit status is the program's, 128 and the signal where one ended it, 126
where it cannot be run, 127 where it is missing.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import FrameType

NOT_RUNNABLE, MISSING = 126, 127

LAST_WORDS_BYTES = 8192
"""How much of the program's stderr is passed on: less than a pipe takes, so that nobody need read it meanwhile."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_SWEEP_SECONDS = 5.0
_LIBC = ctypes.CDLL(None)


def main(arguments: list[str]) -> int:
    """Runs the program to its end, and returns the exit status."""
    lifeline, grace = int(arguments[0]), float(arguments[1])
    passed = [int(number) for number in arguments[2].split(',') if number]
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _woken)
    words, speaker = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(words, False)
    try:
        program = subprocess.Popen(  # noqa: S603 - what the daemon says
            arguments[3:],
            stderr=speaker,
            pass_fds=passed,
            process_group=0,
            preexec_fn=_die_with_the_guard,  # noqa: PLW1509 - this process has one thread
        )
    except OSError as error:
        os.write(2, f'{arguments[3]}: {error.strerror}\n'.encode())
        return MISSING if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    os.close(speaker)
    _let_go_of_the_streams(passed)
    last_words = _watch(program, lifeline, woken, words, grace)
    _sweep()
    last_words.take(words)
    last_words.pass_on()
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


class _LastWords:
    """The end of what the program says on stderr."""

    def __init__(self) -> None:
        self._text = bytearray()

    def take(self, words: int) -> bool:
        """Reads what is there; says False once there will be no more."""
        with suppress(BlockingIOError):
            while True:
                data = os.read(words, 65536)
                if not data:
                    return False
                self._text += data
                del self._text[:-LAST_WORDS_BYTES]
        return True

    def pass_on(self) -> None:
        """Writes them to the guard's own stderr."""
        with suppress(OSError):  # the daemon has gone
            os.write(2, self._text)


def _woken(_number: int, _frame: FrameType | None) -> None:
    """Does nothing: that a signal came is read from the pipe that wakes."""


def _die_with_the_guard() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _let_go_of_the_streams(passed: list[int]) -> None:
    """Leaves the program alone with its input and output: the daemon sees their end when it ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    for number in (nothing, *passed):
        os.close(number)


def _watch(program: subprocess.Popen[bytes], lifeline: int, woken: int, words: int, grace: float) -> _LastWords:
    """Waits for the program's end, and asks for it once the lifeline is let go, or this process is told to end."""
    last_words = _LastWords()
    poll = select.poll()
    for number in (lifeline, woken, words):
        poll.register(number, select.POLLIN)
    kill_at: float | None = None
    while program.poll() is None:
        left = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1000
        ready = {number for number, _ in poll.poll(left)}
        if words in ready and not last_words.take(words):
            poll.unregister(words)
        told = _signals(woken) if woken in ready else b''
        if kill_at is None and (lifeline in ready or set(told) - {signal.SIGCHLD}):
            poll.unregister(lifeline)
            _signal_group(program.pid, signal.SIGTERM)
            kill_at = time.monotonic() + grace
        elif kill_at is not None and time.monotonic() >= kill_at:
            _signal_group(program.pid, signal.SIGKILL)
            program.wait()
    return last_words


def _signals(woken: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(woken, 4096)
    return b''


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _sweep() -> None:
    """Ends and reaps all that is left; whatever they started comes here in turn."""
    until = time.monotonic() + _SWEEP_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            for process in _children():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)


def _children() -> list[int]:
    """Returns the processes whose parent is this one, from /proc (proc_pid_stat(5))."""
    found = []
    for name in os.listdir('/proc'):  # noqa: PTH208 - pathlib would cost a third of the start
        if name.isdigit():
            with suppress(OSError), open(f'/proc/{name}/stat', 'rb') as file:  # noqa: PTH123 - likewise
                parent = file.read().rpartition(b')')[2].split()[1]
                if int(parent) == os.getpid():
                    found.append(int(name))
    return found


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
