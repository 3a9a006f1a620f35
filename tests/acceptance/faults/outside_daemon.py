"""Runs the command line as it is, but for what a file tells: `python outside_daemon.py FILE ARGUMENT…`.

The file is JSON: `umask`, `files` (how many may be open), `request_seconds` (how long a request may take).
"""

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path

from planted import plant_from_environment

from trading_agent.cli.main import main
from trading_agent.daemon.sources import connections

if __name__ == '__main__':
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not longer than the one that started it
    told = json.loads(Path(sys.argv.pop(1)).read_text())
    plant_from_environment()
    connections.REQUEST_SECONDS = told['request_seconds']
    resource.setrlimit(resource.RLIMIT_NOFILE, (told['files'], told['files']))
    os.umask(told['umask'])
    main()
