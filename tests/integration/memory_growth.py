"""How much memory something takes, measured in a program of its own."""

import subprocess
import sys
from pathlib import Path

# Not getrusage(2): its figure begins with what the program had that started this one, which in a test run may be more
# than anything that is measured, and the test could not fail.
_MEASURED = """
from pathlib import Path as _Path

def _most():
    return int(_Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]) << 10

{prepare}
_before = _most()
{work}
print(_most() - _before)
"""


def grown_by(prepare: str, work: str, *arguments: str | Path, cwd: Path | None = None) -> tuple[str, int]:
    """Runs a program and measures it; returns what it printed, and by how many bytes `work` made it grow at most."""
    code = _MEASURED.format(prepare=prepare, work=work)
    command = [sys.executable, '-c', code, *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=cwd, timeout=120)
    printed, _, grown = ran.stdout.rstrip('\n').rpartition('\n')
    return printed, int(grown)
