"""Runs the command line by a clock that a file sets: `python clocked.py CLOCK-FILE ARGUMENT…`.

The file holds two numbers: the seconds added to the host's wall clock, and to its CLOCK_BOOTTIME.
"""

import sys
import time
from functools import partial
from pathlib import Path

from trading_agent.cli.main import main
from trading_agent.clock import IndiaClock
from trading_agent.daemon import daemon


def _added(path: Path, place: int) -> float:
    return float(path.read_text().split()[place])


if __name__ == '__main__':
    file = Path(sys.argv.pop(1))
    daemon.IndiaClock = partial(  # type: ignore[assignment, attr-defined] # made there without arguments
        IndiaClock,
        wall=lambda: time.time() + _added(file, 0),
        boot=lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + _added(file, 1),
    )
    main()
