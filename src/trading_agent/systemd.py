"""What systemd is told: sd_notify(3) over the socket that it names in the environment."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Sends states to the service manager; does nothing where there is none.

    Args:
        environ: The process's environment, with NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID where systemd set them.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.get('NOTIFY_SOCKET', '')
        self._address = '\0' + address[1:] if address.startswith('@') else address
        self._watchdog = _watchdog_seconds(environ)

    @property
    def watchdog_seconds(self) -> float | None:
        """How long the manager waits for a WATCHDOG=1 before it kills the service; None when it does not."""
        return self._watchdog

    def send(self, *states: str) -> None:
        """Sends states such as `READY=1`. Never blocks and never raises: a manager that is gone is not our fault."""
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify,
        ):
            notify.setblocking(False)  # noqa: FBT003 - the standard library's signature
            notify.sendto('\n'.join(states).encode(errors='replace'), self._address)


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Reads WATCHDOG_USEC, which is meant for the process of WATCHDOG_PID (sd_watchdog_enabled(3))."""
    if environ.get('WATCHDOG_PID', str(os.getpid())) != str(os.getpid()):
        return None
    try:
        microseconds = int(environ.get('WATCHDOG_USEC', '0'))
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 else None
