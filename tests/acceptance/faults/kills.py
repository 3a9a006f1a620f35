"""Kill points: the real process under three desks, killed at any moment and in any call, restarted and audited.

A round is one workspace, whose days last some seconds. Its daemon is killed again and again, while it starts, answers
and rolls over; in the end it is let come to rest, stopped in order, and audited by a program of its own. With
KEEP_FAULTS=FOLDER in the environment the workspaces in which a fault was found are kept there.
"""

import random
import shutil
import time
from datetime import timedelta

from findings import Budget, Findings
from killed_daemon import Kill, Time
from killed_life import warm
from killed_round import DAY, NOON, Round, round_of

CATCHES: tuple[str, ...] = (
    'tail not sealed',
    'an exchange appended twice by a restart',
    'rollover without its stages',
    "a second session's section overwriting the first's",
    'summary named by the current date',
    'journal digest not chained',
    'lock not taken',
)


def missing() -> str:
    """Returns what this machine lacks, without which fewer ways to kill are tried."""
    return '' if shutil.which('strace') else 'strace is not installed: no daemon is killed at its system calls'


def run(budget: Budget, plant: str = '') -> Findings:
    """Runs rounds until the budget is over.

    Args:
        budget: How many.
        plant: A fault of `planted.FAULTS` that the daemons have.
    """
    findings = Findings()
    with warm(plant) as zygote:
        for number in budget:
            chances = random.Random(f'{budget.seed}-{number}')  # noqa: S311 - the same ones each time
            factor = DAY / chances.uniform(1.5, 4.0)
            with round_of(zygote, chances, factor, f'round {number} of seed {budget.seed}') as each:
                each.run(straced=not missing())
            findings.take(each.findings)
    findings.counts.update(kills=0, strace_kills=0)
    return findings


def at_system_calls(times: int) -> Findings:
    """Kills a daemon so many times at its system calls alone; for a machine that has strace."""
    chances = random.Random(0)  # noqa: S311 - the same ones each time
    with warm() as zygote, round_of(zygote, chances, DAY / 2, 'at system calls') as each:
        for _ in range(times):
            each.killed(each.by_strace())
        each.settle()
    return each.findings


def trial(plant: str) -> Findings:
    """Kills a daemon at three of its calls and lets another one begin beside it: enough for what is in `CATCHES`.

    Args:
        plant: A fault of `planted.FAULTS` that the daemons have.
    """
    chances = random.Random(0)  # noqa: S311 - the same ones each time
    with warm(plant) as zygote, round_of(zygote, chances, 1.0, 'trial') as each:
        for step in (exchange_before_its_close, exchange_torn, session_before_its_state, Round.settle):
            step(each)
            if each.findings.faults:
                break
    return each.findings


def exchange_before_its_close(each: Round) -> None:
    """Kills it when the first exchange of a day's second session is written, and nothing else of it."""
    life = each.workspace.start(kill=Kill(('pwrite',), 'main/sessions/2026-03-10-2', how='after'))
    each.workspace.send(life, 'main')
    each.workspace.rest(life)
    each.workspace.manual['main'] += 1
    each.workspace.ask(life, 'POST', '/v1/desks/main/rollover')
    each.workspace.send(life, 'main')
    each.killed(life)


def exchange_torn(each: Round) -> None:
    """Kills it when half of the next one is written; the start after that mends it."""
    # The start writes the last line once more, to be sure that it is on the disk.
    life = each.workspace.start(kill=Kill(('pwrite',), 'main/sessions/2026-03-10-2', number=2, how='half'))
    each.workspace.send(life, 'main')
    each.killed(life)
    life = each.workspace.start('killed when it was ready')
    each.workspace.ready(life)
    life.kill()
    each.killed(life)


def session_before_its_state(each: Round) -> None:
    """Lets the next day come, and kills it when the new session has its log, and no state names it."""
    each.workspace.shown = Time((NOON + timedelta(hours=13)).timestamp(), time.time(), 1.0)
    each.killed(each.workspace.start(kill=Kill(('link',), 'main/sessions/2026-03-11-1', how='after')))
