"""The tools of a desk: its own on real files, and those of a real MCP server, as a turn of a session uses them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_fakes import need_package, plain, running

from trading_agent.clock import INDIA, ManualClock
from trading_agent.conversation.agent import Agent
from trading_agent.conversation.tools import Tool, named, result_of
from trading_agent.disk import Disk
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.messages import ToolCall, ToolResultMessage
from trading_agent.providers.provider import Stopped
from trading_agent.testing.provider import ScriptedProvider
from trading_agent.tools.desk_tools import DeskTools, tools_digest
from trading_agent.tools.mcp_servers import McpServers
from trading_agent.tools.outcome import ToolError
from trading_agent.tools.wake_up import MOST_OPEN, SOURCE, instant_of, shown
from trading_agent.turn_events import ToolCalled

NOON = datetime(2026, 10, 19, 12, 0, tzinfo=INDIA)
SESSION = '2026-10-19-1'


class Desk:
    """A desk's tools, its queue, its clock and its folder."""

    def __init__(self, folder: Path, servers: McpServers | None = None, **options: Any) -> None:  # noqa: ANN401
        self.folder = folder
        self.clock = ManualClock(NOON)
        self.queue = TriggerQueue(folder, 'main', self.clock, lambda _: None, Disk())
        self.tools = DeskTools(
            'main',
            folder=folder,
            servers=servers,
            send=self.queue.accept,
            open_wake_ups=lambda: sum(entry.trigger.source == SOURCE for entry in self.queue.open_entries()),
            clock=self.clock,
            disk=Disk(),
            **options,
        )

    def turn(self, trigger_id: str = 'trigger', attempt: int = 1) -> dict[str, Tool]:
        return named(self.tools.for_turn(trigger_id, attempt, SESSION))


async def used(tools: dict[str, Tool], tool: str, /, **arguments: Any) -> ToolResultMessage:  # noqa: ANN401
    """Uses a tool as a session does."""
    return await result_of(ToolCall('1', tool, arguments), tools)


@asynccontextmanager
async def desk_with_server(folder: Path, **options: Any) -> AsyncIterator[Desk]:  # noqa: ANN401
    """Runs a desk with one MCP server, whose orders are lines of a file."""
    need_package('mcp')
    async with running([plain(folder / 'orders.txt', name='broker')]) as desk:
        await desk.ready('broker')
        yield Desk(folder, desk.servers, **options)


def keys(folder: Path) -> list[str]:
    """Returns the keys of the orders that were placed."""
    return [line.split(' ')[0] for line in (folder / 'orders.txt').read_text().split('\n')[:-1]]


# -- the keys of calls -----------------------------------------------------------------------------------------


async def test_each_call_of_a_turn_has_a_key_of_its_own(tmp_path: Path) -> None:
    """The n-th call with side effects carries trigger, attempt and n; a read-only one carries none and counts not."""
    async with desk_with_server(tmp_path, read_only=['broker__e*']) as desk:
        turn = desk.turn('a/b', 3)
        for _ in range(2):
            await used(turn, 'broker__order', symbol='TCS')
            await used(turn, 'broker__echo', text='what is the price?')
            await used(turn, 'note', text='ordered')
        await used(desk.turn('a/b', 4), 'broker__order', symbol='TCS')
        await used(desk.turn('c', 1), 'broker__order', symbol='TCS')
        assert keys(tmp_path) == ['a/b/3/1', 'a/b/3/2', 'a/b/4/1', 'c/1/1']


async def test_no_key_comes_twice_where_a_turn_is_tried_on_another_backend(tmp_path: Path) -> None:
    """Tools that are asked for again within one attempt go on counting."""
    async with desk_with_server(tmp_path) as desk:
        for _ in range(3):
            await used(desk.turn(), 'broker__order', symbol='TCS')
        assert keys(tmp_path) == ['trigger/1/1', 'trigger/1/2', 'trigger/1/3']


async def test_a_read_only_tool_carries_no_key(tmp_path: Path) -> None:
    """A tool that `read_only` names is called without a key."""
    async with desk_with_server(tmp_path, read_only=['broker__order']) as desk:
        await used(desk.turn(), 'broker__order', symbol='TCS')
        assert keys(tmp_path) == ['None']


def test_everything_has_side_effects_unless_it_is_named(tmp_path: Path) -> None:
    """Only the built-in tools, and those that `read_only` names, have none; names that are not known have them."""
    desk = Desk(tmp_path, read_only=['time__*', 'broker__get_price'])
    free = {'note', 'read_skill', 'wake_me', 'time__now', 'broker__get_price'}
    all_names = free | {'broker__order', 'broker__get_price_and_buy', 'nothing', 'notes', 'Time__now', 'atime__now'}
    assert {name for name in all_names if not desk.tools.has_side_effects(name)} == free
    assert Desk(tmp_path).tools.has_side_effects('broker__get_price')


# -- in a session ----------------------------------------------------------------------------------------------


async def test_a_session_uses_the_tools_of_a_server(tmp_path: Path) -> None:
    """A model is told the tools with their schemas, its calls are made, and a failing one does not end the turn."""
    async with desk_with_server(tmp_path) as desk:
        provider = ScriptedProvider(
            [ToolCalled('1', 'broker__order', {'symbol': 'TCS'}), Stopped('tool_use')],
            [ToolCalled('2', 'broker__dies', {}), ToolCalled('3', 'broker__refuses', {}), Stopped('tool_use')],
            'Ordered, and the broker died.',
        )
        agent = Agent(provider, tools=desk.tools.for_turn('t', 1, SESSION))
        response = await agent.session().run_async('Buy.')
        assert response.text == 'Ordered, and the broker died.'
        told = {tool.name: tool for tool in provider.requests[0].tools}
        assert {'note', 'read_skill', 'wake_me', 'broker__order'} < set(told)
        assert told['broker__order'].parameters == {'type': 'object'}
        results = [message for message in provider.requests[2].messages if isinstance(message, ToolResultMessage)]
        assert [result.is_error for result in results] == [False, True, True]
        assert results[1].content.startswith("ToolError: the server 'broker' was lost")
        assert results[2].content == 'ToolError: the broker is closed'
        assert keys(tmp_path) == ['t/1/1']


async def test_the_allow_list_holds_for_built_in_tools_too(tmp_path: Path) -> None:
    """Where something is allowed, what is not named is not there."""
    assert set(Desk(tmp_path).turn()) == {'note', 'read_skill', 'wake_me'}
    assert set(Desk(tmp_path, allow=['wake_*', 'time__*']).turn()) == {'wake_me'}


async def test_the_digest_tells_what_a_model_was_told(tmp_path: Path) -> None:
    """The digest is the same for the same tools in any order and turn, and another one for other tools."""
    async with desk_with_server(tmp_path) as desk:
        assert desk.tools.digest() == tools_digest(list(reversed(desk.tools.for_turn('t', 1, SESSION))))
        assert desk.tools.digest() == tools_digest(desk.tools.for_turn('u', 2, SESSION))
    alone = Desk(tmp_path)
    assert alone.tools.digest() != desk.tools.digest()
    assert alone.tools.digest() != Desk(tmp_path, allow=['note']).tools.digest()


# -- notes and skills ------------------------------------------------------------------------------------------


async def test_a_note_is_kept_for_the_session(tmp_path: Path) -> None:
    """A note is in the session's notes when the call has returned, and one that cannot be kept is an error."""
    turn = Desk(tmp_path).turn()
    assert not (await used(turn, 'note', text='TCS moves before results.')).is_error
    refused = await used(turn, 'note', text=' ')
    assert refused.is_error
    assert 'say what is to be remembered' in refused.content
    assert DayNotes(tmp_path).read(SESSION) == ['TCS moves before results.']


async def test_a_skill_is_read(tmp_path: Path) -> None:
    """A skill is read by its name; for one that is not there the model is told which are."""
    path = tmp_path / 'skills' / 'sizing'
    path.mkdir(parents=True)
    (path / 'SKILL.md').write_text('---\nname: sizing\ndescription: How much to buy.\n---\nNever all of it.\n')
    turn = Desk(tmp_path).turn()
    assert 'Never all of it.' in (await used(turn, 'read_skill', name='sizing')).content
    missing = await used(turn, 'read_skill', name='hedging')
    assert missing.is_error
    assert 'there is sizing' in missing.content
    assert (await used(turn, 'read_skill', name='../sizing')).is_error


# -- being woken -----------------------------------------------------------------------------------------------


async def test_a_desk_is_woken_when_it_asked_to_be(tmp_path: Path) -> None:
    """A wake-up is a trigger of the desk that is due then, tells its text, and says whose words they are."""
    desk = Desk(tmp_path)
    said = await used(desk.turn(), 'wake_me', text='Look at TCS.', at='14:30')
    assert said.content == 'You will be woken on Monday 2026-10-19 14:30 IST.'
    assert desk.queue.head() is None
    desk.clock.advance(timedelta(hours=2, minutes=30))
    head = desk.queue.head()
    assert head is not None
    trigger = head.trigger
    assert (trigger.priority, trigger.source, trigger.desk) == ('timer', SOURCE, 'main')
    assert trigger.text == 'You asked on Monday 2026-10-19 12:00 IST to be woken now, and to be told: Look at TCS.'


async def test_a_turn_that_is_run_again_is_woken_once(tmp_path: Path) -> None:
    """What a turn asked for before it was cut off, it asks for once; the same words twice in a turn are two."""
    desk = Desk(tmp_path)
    await used(desk.turn('t', 1), 'wake_me', text='Look at TCS.', in_minutes=30)
    await used(desk.turn('t', 1), 'wake_me', text='Look at TCS.', in_minutes=60)
    desk.clock.advance(timedelta(minutes=1))
    again = desk.turn('t', 2)
    for minutes in (30, 60):
        said = await used(again, 'wake_me', text='Look at TCS.', in_minutes=minutes)
        assert 'before it was cut off' in said.content
        assert not said.is_error
    await used(again, 'wake_me', text='Look at INFY.', in_minutes=30)
    await used(desk.turn('u', 1), 'wake_me', text='Look at TCS.', in_minutes=30)
    assert desk.queue.depth == 4


async def test_wake_ups_are_few(tmp_path: Path) -> None:
    """Past 20 open wake-ups no more are taken, until one is over."""
    desk = Desk(tmp_path)
    turn = desk.turn()
    for number in range(MOST_OPEN):
        assert not (await used(turn, 'wake_me', text=f'{number}', in_minutes=number + 1)).is_error
    assert '20 wake-ups are waiting' in (await used(turn, 'wake_me', text='more', in_minutes=1)).content
    desk.clock.advance(timedelta(minutes=1))
    head = desk.queue.head()
    assert head is not None
    await desk.queue.close(head, 'answered', SESSION)
    assert not (await used(turn, 'wake_me', text='more', in_minutes=1)).is_error


@pytest.mark.parametrize(
    ('arguments', 'told'),
    [
        ({'text': 'x'}, 'say either `at` or `in_minutes`'),
        ({'text': 'x', 'at': '14:30', 'in_minutes': 5}, 'say either'),
        ({'text': ' ', 'in_minutes': 5}, 'say in `text`'),
        ({'text': 'x' * 2001, 'in_minutes': 5}, 'has 2001 characters'),
        ({'text': 'x', 'in_minutes': 0}, 'is in the past: it is Monday 2026-10-19 12:00 IST'),
        ({'text': 'x', 'in_minutes': -5}, 'is in the past'),
        ({'text': 'x', 'in_minutes': 10**30}, 'too many'),
        ({'text': 'x', 'in_minutes': 60 * 24 * 31}, 'more than 30 days ahead'),
        ({'text': 'x', 'at': '2026-10-19T11:59'}, 'is in the past'),
        ({'text': 'x', 'at': '9999-12-31T23:59:59-12:00'}, 'is no time'),
        ({'text': 'x', 'at': 'tomorrow'}, "'tomorrow' is no time: write it like 14:30"),
        ({'text': 'x', 'at': '25:00'}, 'is no time'),
        ({'text': 'x', 'in_minutes': 'five'}, 'int'),
    ],
)
async def test_a_wake_up_that_makes_no_sense_is_refused(arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
    """A wake-up without a text or a time, in the past or far ahead is an error that says what is wrong."""
    desk = Desk(tmp_path)
    result = await used(desk.turn(), 'wake_me', **arguments)
    assert result.is_error
    assert told in result.content
    assert desk.queue.depth == 0


@pytest.mark.parametrize(
    ('at', 'instant'),
    [
        ('12:01', '2026-10-19T12:01+05:30'),
        ('12:00', '2026-10-20T12:00+05:30'),
        ('9:10', '2026-10-20T09:10+05:30'),
        (' 14:30 ', '2026-10-19T14:30+05:30'),
        ('2026-10-20T09:10', '2026-10-20T09:10+05:30'),
        ('2026-10-20 09:10', '2026-10-20T09:10+05:30'),
        ('2026-10-20T09:10Z', '2026-10-20T14:40+05:30'),
        ('2026-10-20', '2026-10-20T00:00+05:30'),
    ],
)
def test_a_time_is_one_in_india(at: str, instant: str) -> None:
    """A time without a zone is India's; a time of the day is the next such."""
    assert instant_of(at, None, NOON.astimezone(UTC)) == datetime.fromisoformat(instant)


@given(
    st.text(max_size=30) | st.datetimes().map(str) | st.datetimes().map(lambda at: f'{at}Z'),
    st.integers(0, 10_000_000).map(lambda minutes: NOON.astimezone(UTC) + timedelta(minutes=minutes)),
)
def test_any_text_is_a_time_or_no_time(at: str, now: datetime) -> None:
    """Whatever a model writes as a time is an instant with a zone, or refused in words."""
    try:
        instant = instant_of(at, None, now)
    except ToolError:
        return
    assert instant.utcoffset() is not None
    assert shown(instant)
