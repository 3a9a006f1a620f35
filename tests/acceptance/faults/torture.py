"""Breaks everything for as long as it is told to: `python torture.py [--minutes N] [--parts NAME,…] [--seed N]`.

The parts run two at a time, each in a process of its own, for a share of the time. Every promise that was not kept is
printed with what repeats it; the last line has the figures as `key=value`. Exit code 0: all were kept; 1: not all.
"""

import argparse
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import planted
from findings import Budget, Fault, Findings

HERE = Path(__file__).parent

WORKERS = 2
"""How many parts run side by side."""

PATIENCE_SECONDS = 180.0
"""How much longer than its share a part may take: it ends a round that it has begun."""

SHOWN = 40

FIGURES = {
    'lost': 'acknowledged_lost',
    'twice': 'recorded_twice',
    'blocked': 'desks_blocked',
    'silent': 'silent_repairs',
    'broken': 'other_faults',
}


@dataclass(frozen=True)
class Part:
    """A part of the suite.

    Attributes:
        name: Its module.
        share: How much of the time it gets, beside the others.
        processes: In how many processes it runs, each with chances of its own.
    """

    name: str
    share: float
    processes: int = 1


PARTS = (
    Part('kills', 31, processes=2),
    Part('crash_states', 29, processes=2),
    Part('power_cuts', 13),
    Part('io_errors', 6),
    Part('damaged_files', 4),
    Part('time_walks', 8),
    Part('outside', 2),
    Part('races', 3),
    Part('overload', 4),
)


def module_of(part: str) -> Any:  # noqa: ANN401 - a module
    """Returns the module of a part, which finds what it shares with other tests as under pytest."""
    for folder in (HERE.parent, HERE.parents[1] / 'integration'):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(part)


def lacks(part: str) -> str:
    """Returns what this machine lacks that the part needs; empty where it has all."""
    missing: str = getattr(module_of(part), 'missing', str)()
    return missing


def finder_of(fault: str) -> str | None:
    """Returns the first part that finds a planted fault, as it says, and can run here."""
    return next((part.name for part in PARTS if fault in module_of(part.name).CATCHES and not lacks(part.name)), None)


def planted_faults(seconds: float) -> Findings:
    """Plants each fault, and has the part that says so find it."""
    findings = Findings()
    budget = Budget(seconds=seconds)
    for fault in planted.FAULTS:
        part = finder_of(fault)
        if part is None or budget.spent:
            continue
        findings.counts['planted_tried'] += 1
        if module_of(part).trial(fault).faults:
            findings.counts['planted_caught'] += 1
        else:
            findings.add('broken', f'{part} does not find what was planted: {fault}')
    return findings


# -- one part, in a process of its own -------------------------------------------------------------------------------


def run_part(name: str, seconds: float, seed: int, out: Path) -> None:
    """Runs a part and writes what it found."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not longer than the one that waits for it
    findings = Findings()
    try:
        if name == 'planted':
            findings = planted_faults(seconds)
        else:
            findings = module_of(name).run(Budget(seconds=seconds, seed=seed))
    except Exception:  # noqa: BLE001 - told as what it is
        findings.add('broken', f'{name} failed: {traceback.format_exc()}')
    out.write_text(json.dumps({'counts': findings.counts, 'faults': findings.faults}))


def part_in_a_process(name: str, seconds: float, seed: int) -> Findings:
    """Runs a part in a process of its own and returns what it found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / 'findings'
        arguments = ['--part', name, '--seconds', str(seconds), '--seed', str(seed), '--out', str(out)]
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(seconds + PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return Findings(faults=[Fault('blocked', f'{name} did not end: seed {seed}')])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not out.exists():
            return Findings(faults=[Fault('broken', f'{name} ended with {process.returncode}: seed {seed}')])
        found = json.loads(out.read_text())
        findings = Findings(faults=[Fault(*fault) for fault in found['faults']])
        findings.counts.update(found['counts'])
        return findings


# -- all of them -----------------------------------------------------------------------------------------------------


def tasks(minutes: float, names: Sequence[str], seed: int) -> Iterator[tuple[str, float, int]]:
    """Yields each process's part, its time in seconds and its seed, the longest first."""
    parts = [part for part in PARTS if part.name in names]
    whole = minutes * 60 * WORKERS
    if 'planted' in names:
        yield 'planted', whole, seed
        whole = max(whole * 0.4, whole - 60)  # what it takes, about
    for part in sorted(parts, key=lambda part: -part.share):
        seconds = whole * part.share / sum(each.share for each in parts) / part.processes
        for number in range(part.processes):
            yield part.name, seconds, seed + number


def torture(minutes: float, names: Sequence[str], seed: int) -> Findings:
    """Runs the parts and returns what they found; tells on stderr how far it is."""
    findings = Findings()
    left = list(tasks(minutes, names, seed))
    taking = threading.Lock()

    def work() -> None:
        while True:
            with taking:
                if not left:
                    return
                name, seconds, its_seed = left.pop(0)
            began = time.monotonic()
            found = part_in_a_process(name, seconds, its_seed)
            told = ' '.join(f'{key}={value}' for key, value in found.counts.items())
            with taking:
                findings.take(found)
                print(f'{name}: {len(found.faults)} faults, {told}, {time.monotonic() - began:.0f} s', file=sys.stderr)

    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return findings


def figures(findings: Findings, minutes: float, left_out: Sequence[str]) -> str:
    """Returns the last line."""
    kinds: list[str] = [fault.kind for fault in findings.faults]
    told = {key: str(value) for key, value in sorted(findings.counts.items())}
    told |= {figure: str(kinds.count(kind)) for kind, figure in FIGURES.items()}
    told['left_out'] = ','.join(left_out) or 'nothing'
    return ' '.join(f'{key}={value}' for key, value in {'minutes': f'{minutes:g}', **told}.items())


def main() -> int:
    """Runs what the command line asks for."""
    names = [part.name for part in PARTS] + ['planted']
    parser = argparse.ArgumentParser(prog='scripts/torture', description=__doc__)
    parser.add_argument('--minutes', type=float, default=15.0, help='how long; 15 by default')
    parser.add_argument('--parts', type=lambda text: text.split(','), default=names, help=', '.join(names))
    parser.add_argument('--seed', type=int, default=time.time_ns() % 1_000_000, help='what chance comes from')
    parser.add_argument('--part', help=argparse.SUPPRESS)
    parser.add_argument('--seconds', type=float, help=argparse.SUPPRESS)
    parser.add_argument('--out', type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.seconds, options.seed, options.out)
        return 0
    if unknown := sorted(set(options.parts) - set(names)):
        parser.error(f'no part is named {", ".join(unknown)}; there is {", ".join(names)}')
    left_out = []
    for name in options.parts:
        if name != 'planted' and (why := lacks(name)):
            print(f'{name} is left out: {why}', file=sys.stderr)
            left_out.append(name)
    print(f'the seed is {options.seed}', file=sys.stderr)
    began = time.monotonic()
    findings = torture(options.minutes, [name for name in options.parts if name not in left_out], options.seed)
    for kind, what in findings.faults[:SHOWN]:
        print(f'{kind}: {what}')
    if len(findings.faults) > SHOWN:
        print(f'… and {len(findings.faults) - SHOWN} more')
    print(figures(findings, (time.monotonic() - began) / 60, left_out))
    return 1 if findings.faults else 0


if __name__ == '__main__':
    sys.exit(main())
