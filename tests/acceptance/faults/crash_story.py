"""What is recorded for the crash states: `python crash_story.py FOLDER CHAPTER…`, run under strace.

Each chapter has a workspace of its own, FOLDER/CHAPTER/workspace; FOLDER/CHAPTER is there and empty. What a desk tells
and what a turn does is written to FOLDER/marks in the same moment, one line of JSON each: by that, it stands in the
trace in front of everything that comes after it.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import planted
from scripted_story import ORDER, REFUSE, TALK, WAIT, Mark, Story

from trading_agent.conversation import recorder
from trading_agent.daemon import desk_loop, restarts
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.routing import model_router


async def day(story: Story) -> None:
    """A first start, triggers at once, an order, every other outcome, a stop in the middle of a turn."""
    await story.start()
    await story.send(('a', 'the first'), ('b', 'the second'), ('c', TALK))
    await story.send(('order', ORDER))
    await story.send(('refused', REFUSE))
    await story.send(('slow', WAIT), rest=False)
    await story.until(lambda: story.daemon.supervisor.desks['main'].turn)
    await story.send(('gone', 'never mind'), rest=False)
    await story.daemon.supervisor.desks['main'].cancel('gone', 'a person', 'no longer needed')
    await story.stop()
    await story.start()
    await story.rest()
    await story.send(('order-2', ORDER))
    await story.stop()


async def rollovers(story: Story) -> None:
    """Two sessions of a day, one ended by hand, and the next day, with triggers that wait meanwhile."""
    await story.start()
    await story.send(('a', 'the first'))
    await story.roll_over()
    await story.send(('b', 'the second'), ('order', ORDER))
    await story.next_day()
    await story.send(('c', 'a new day'))
    await story.stop()


async def desks(story: Story) -> None:
    """Two desks side by side."""
    await story.start()
    for number in range(2):
        async with anyio.create_task_group() as both:
            both.start_soon(story.send, (f'm{number}', 'to main'), (f'mo{number}', ORDER))
            both.start_soon(partial(story.send, (f'o{number}', 'to other'), desk='other'))
    await story.next_day()
    await story.stop()


async def index(story: Story) -> None:
    """An index that follows the files."""
    kept = SqliteIndex(story.workspace)

    async def follow() -> None:
        await anyio.to_thread.run_sync(kept.catch_up)
        story.mark(what='indexed')

    await story.start()
    await story.send(('a', 'the first'))
    await follow()
    await story.send(('b', 'the second'), ('c', TALK))
    await follow()
    await anyio.to_thread.run_sync(kept.close)
    await story.roll_over()
    await story.send(('d', 'the third'))
    await follow()
    kept.close()
    await story.stop()


async def syncs(story: Story) -> None:
    """What is recorded while syncs fail."""
    await story.start()
    await story.send(('a', 'the first'), ('b', 'the second'))
    await story.send(('order', ORDER))
    await story.send(('c', TALK))
    await story.roll_over()
    await story.send(('d', 'the last'))
    await story.stop()


# -- what a killed process has left ----------------------------------------------------------------------------

Alter = Callable[[str, bytes], bytes]


async def _goes_on(story: Story, left_at: str, tell: Callable[[Story], Awaitable[None]], alter: Alter) -> None:
    """Is killed at some mark, and goes on from there; what is looked at begins with the start after that.

    Args:
        story: The chapter.
        left_at: What the mark says, and of which trigger or session.
        tell: What happens until then.
        alter: Makes of the files, by their names, what is left of them.
    """
    before = story.before()

    def leave(mark: Mark) -> None:
        if f'{mark["what"]} {mark.get("id")}' == left_at:
            before.on_mark = lambda _: None
            before.leave_behind(story, alter)

    before.on_mark = leave
    await before.start()
    await tell(before)
    await before.stop()
    await story.start()
    await story.rest()
    await story.send(('later', 'go on'))
    await story.stop()


def _torn(name: str, data: bytes) -> bytes:
    return data + b'{"type":"turn_sta' if name.endswith('.jsonl') else data


async def acted(story: Story) -> None:
    """A start after a turn was cut off that had acted, with torn lines, while others wait."""

    async def tell(before: Story) -> None:
        await before.send(('a', 'the first'), ('order', ORDER), ('b', 'the next'))

    await _goes_on(story, 'effect order', tell, _torn)


async def ended(story: Story) -> None:
    """A start after a turn that has its end in the journal, and no exchange."""

    def alter(name: str, data: bytes) -> bytes:
        if 'triggers.jsonl' in name or 'sessions/2' in name:  # the closing, and the exchange
            return data[: data.rstrip(b'\n').rindex(b'\n') + 1]
        return data.replace(b'"exchanges_seen": 2', b'"exchanges_seen": 1')

    async def tell(before: Story) -> None:
        await before.send(('a', 'the first'))
        await before.send(('b', 'the second'))

    await _goes_on(story, 'closed b', tell, alter)


async def rolling(story: Story) -> None:
    """A start in the middle of a rollover, after the summary was written."""

    async def tell(before: Story) -> None:
        await before.send(('a', 'the first'))
        await before.roll_over()

    await _goes_on(story, 'summary 2026-10-19-1', tell, lambda _, data: data)


async def holed(story: Story) -> None:
    """A start after a power cut that has taken a record out of the middle of what was not synced."""

    def alter(name: str, data: bytes) -> bytes:
        lines = data.split(b'\n')
        if 'journal/' not in name:
            return data
        lost = b'\0' * (len(lines[-4]) + 1)
        return b'\n'.join(lines[:-4]) + b'\n' + lost + b'\n'.join(lines[-3:])

    async def tell(before: Story) -> None:
        await before.send(('a', 'the first'))
        await before.send(('slow', WAIT), rest=False)
        journal = before.workspace / 'desks' / 'main' / 'journal' / '2026-10-19-1.jsonl'
        await before.until(lambda: journal.read_bytes().count(b'"type":"text"') >= 5)
        await before.send(('b', 'the next'), rest=False)

    await _goes_on(story, 'accepted b', tell, alter)


CHAPTERS: dict[str, Callable[[Story], Awaitable[None]]] = {
    chapter.__name__: chapter for chapter in (day, rollovers, desks, index, syncs, acted, ended, rolling, holed)
}


def desks_of(chapter: str) -> tuple[str, ...]:
    """Returns the desks of a chapter."""
    return ('main', 'other') if chapter == 'desks' else ('main',)


def main(folder: Path, names: list[str]) -> None:
    """Tells chapters."""
    planted.plant_from_environment()
    desk_loop.TRY_AGAIN_SECONDS = (0.01, 0.05)
    model_router.WRITE_AGAIN_SECONDS = (0.01, 0.05)
    recorder.WRITE_AGAIN_SECONDS = 0.01
    restarts.LONGEST_DELAY_SECONDS = 0.01
    os.umask(0o022)
    marks = os.open(folder / 'marks', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for name in names:
        anyio.run(CHAPTERS[name], Story(folder / name, marks, desks_of(name)))


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2:])
