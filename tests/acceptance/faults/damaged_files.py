"""Damages the files of a desk, and what is handed to the daemon: is anything lost, held up, or mended unsaid?"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import hypothesis
from damage import Damage, damages
from damaged_desk import HOME, LOG, NOT_ALWAYS_THERE, TRIGGERS, Case
from damaged_inputs import INBOX, try_inputs
from findings import Budget, Findings
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from old_desk import FIRST, THIRD, make_desk
from planted import planted
from quick_folder import quick_folder

DESKS = 10
"""How many desks are damaged in one round; the first of them is the same in each."""

INPUTS, SEVERAL = 3, 5
"""How often the daemon is handed something damaged in one round, and how many things one after the other."""

_WORTH_A_LOOK = [
    LOG,
    TRIGGERS,
    f'{HOME}/sessions/state.json',
    f'{HOME}/sessions/rollover.json',
    f'{HOME}/journal/{THIRD}.jsonl',
]
"""What a start depends on: damaged more often than the rest."""


@contextmanager
def bench() -> Iterator[tuple[list[Path], Path]]:
    """Makes two desks, whose rollovers have come to different stages; yields their workspaces and where copies go."""
    with quick_folder() as folder:
        bases = [folder / stage / 'ws' for stage in ('actions', 'summary')]
        for base in bases:
            anyio.run(make_desk, base, base.parent.name)
        yield bases, folder / 'ws'


def paths_of(base: Path) -> list[str]:
    """Returns what can be damaged; what a start depends on more than once."""
    there = sorted(str(path.relative_to(base)) for path in base.rglob('*') if path.is_file())
    return sorted({*there, *NOT_ALWAYS_THERE}) + _WORTH_A_LOOK * 3


def several(damage: st.SearchStrategy[list[Damage]]) -> st.SearchStrategy[list[list[Damage]]]:
    """Returns what is tried one after the other."""
    return st.lists(damage, min_size=SEVERAL, max_size=SEVERAL)


def run(budget: Budget, plant: str = '') -> Findings:
    """Damages desks until the budget is over."""
    findings = Findings()
    with bench() as (bases, workspace):
        for number in budget:
            _round(f'{budget.seed}-{number}', bases[number % 2], workspace, findings, plant)
    return findings


def _round(seed: str, base: Path, workspace: Path, findings: Findings, plant: str) -> None:
    def generated(most: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
        settings = hypothesis.settings(
            max_examples=most,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        return lambda function: hypothesis.seed(seed)(settings(function))

    @generated(DESKS)
    @hypothesis.given(damages(paths_of(base)))
    def desk(done: list[Damage]) -> None:
        with planted(plant):
            _try(done, base, workspace, findings, f'round {seed}, {done}')

    @generated(INPUTS)
    @hypothesis.given(several(damages(['trading-agent.toml'])), several(damages(list(INBOX))))
    def inputs(configurations: list[list[Damage]], files: list[list[Damage]]) -> None:
        with planted(plant), tempfile.TemporaryDirectory(dir=workspace.parent) as folder:
            anyio.run(try_inputs, Path(folder), configurations, files, findings, f'round {seed}')
        findings.counts['damaged_files'] += sum(map(len, configurations + files))

    desk()
    inputs()


def _try(done: Sequence[Damage], base: Path, workspace: Path, findings: Findings, where: str) -> None:
    try:
        Case(base, workspace, done, findings, where).run()
        findings.counts['damaged_files'] += len({damage.path for damage in done})
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


TRIED: Mapping[str, Damage] = {
    'splitlines': Damage(LOG, 'insert', 0.2, 'U+2028'),
    'a read that raises on a bad byte': Damage(f'{HOME}/triggers/{FIRST}.jsonl', 'insert', 0.5, 'a bad byte'),
    'tail not sealed': Damage(TRIGGERS, 'cut', 0.999),
}
"""What finds each fault that is planted."""

CATCHES = tuple(TRIED)


def trial(plant: str) -> Findings:
    """Tries what a planted fault is found by; all of it, where none is planted."""
    findings = Findings()
    with bench() as (bases, workspace), planted(plant):
        for damage in [TRIED[plant]] if plant in TRIED else TRIED.values():
            _try([damage], bases[0], workspace, findings, str(damage))
    return findings


if __name__ == '__main__':
    found = run(Budget(seconds=float(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1))
    for fault in found.faults:
        print(*fault, sep=': ')  # noqa: T201 - its output
    print(dict(found.counts))  # noqa: T201
