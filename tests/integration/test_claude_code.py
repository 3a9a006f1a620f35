"""The runner over the `claude` command, against a stand-in for it that is a real process and misbehaves on demand."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import anyio
import fake_claude
import pytest
from memory_growth import grown_by
from router_fakes import Desk

from trading_agent.errors import BackendBusy, BackendDown, BackendError, LostSession, TradingAgentError
from trading_agent.memory.exchange import Exchange
from trading_agent.routing import claude_code, guarded_process
from trading_agent.routing.catch_up import ASKED_ABOUT, END, MISSED
from trading_agent.routing.claude_code import ClaudeCodeRunner
from trading_agent.routing.turn_runner import (
    TextPiece,
    ToolCalled,
    ToolReturned,
    Turn,
    TurnAnswered,
    TurnEvent,
    TurnRunner,
    UsageCounted,
)
from trading_agent.testing import TurnRunnerContract

DEADLINE = 30.0
KEY = 'sk-ant-a-key-for-tests'
EXCHANGES = [
    Exchange('first', 'noted', 'claude', '2026-10-19T04:00:00Z'),
    Exchange('second', 'noted by gpt', 'gpt', '2026-10-19T04:10:00Z'),
]


@pytest.fixture
def command(tmp_path: Path) -> str:
    """The stand-in, as a program."""
    program = tmp_path / 'bin' / 'claude'
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {fake_claude.__file__} "$@"\n')
    program.chmod(0o755)
    return str(program)


class Claude:
    """A desk's runner, and what its command was called with."""

    def __init__(self, folder: Path, command: str, **options: Any) -> None:  # noqa: ANN401 - as the runner takes them
        self.folder = folder
        self.runner = ClaudeCodeRunner('claude', folder=folder, command=command, **({'api_key': KEY} | options))

    async def run(self, text: str, **changes: Any) -> list[TurnEvent]:  # noqa: ANN401 - any field of a Turn
        with anyio.fail_after(DEADLINE):
            async with aclosing(self.runner.run(turn(text, **changes))) as events:
                return [event async for event in events]

    async def answer(self, text: str, **changes: Any) -> TurnAnswered:  # noqa: ANN401 - any field of a Turn
        last = (await self.run(text, **changes))[-1]
        assert isinstance(last, TurnAnswered)
        return last

    async def cut_off(self, text: str, **changes: Any) -> None:  # noqa: ANN401 - any field of a Turn
        """Closes the events of a turn once the model has begun to answer."""
        with anyio.fail_after(DEADLINE):
            async with aclosing(self.runner.run(turn(text, **changes))) as events:
                async for event in events:
                    if isinstance(event, TextPiece):
                        break

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / '.claude-home' / 'calls.jsonl'
        return [json.loads(line) for line in path.read_text().split('\n') if line] if path.exists() else []


def turn(text: str, **changes: Any) -> Turn:  # noqa: ANN401 - any field of a Turn
    """Returns a turn of the desk."""
    fields: dict[str, Any] = {'desk': 'main', 'session_id': '2026-10-19-1', 'trading_date': date(2026, 10, 19)}
    return Turn(**(fields | {'text': text, 'memory': 'Never hold ABC overnight.'} | changes))


@pytest.fixture
def claude(tmp_path: Path, command: str) -> Claude:
    """A desk on the stand-in."""
    return Claude(tmp_path / 'desk', command)


async def until(condition: Callable[[], object], what: str) -> None:
    """Waits for something that must happen."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        await anyio.sleep(0.01)


def alive(pid: int) -> bool:
    """Returns whether a process is there and no zombie."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


def parent_of(pid: int) -> int:
    """Returns the process that has started a process."""
    return int(Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1])


def paths_in(folder: Path, pattern: str = '**/*') -> list[Path]:
    """Returns what is in a folder."""
    return sorted(folder.glob(pattern))


class TestClaudeCode(TurnRunnerContract):
    """What every backend's runner must do."""

    @pytest.fixture(autouse=True)
    def _on_the_stand_in(self, claude: Claude) -> None:
        self.claude = claude

    def make_runner(self) -> TurnRunner:
        return self.claude.runner


# -- what the command is given -------------------------------------------------------------------------------------


async def test_a_first_turn_begins_a_session_and_the_next_resumes_it(claude: Claude) -> None:
    """The first turn names a new session, the second resumes it at its last message, and the model knows both."""
    first = await claude.answer('first')
    second = await claude.answer('second', runner_state=first.runner_state, exchanges=EXCHANGES[:1], exchanges_seen=1)
    begun, resumed = (call['options'] for call in claude.calls())
    assert first.runner_state is not None
    assert second.runner_state is not None
    assert 'resume' not in begun
    assert begun['session-id'] == first.runner_state['session_id'] == second.runner_state['session_id']
    assert (resumed['resume'], resumed['resume-session-at']) == tuple(first.runner_state.values())
    assert 'session-id' not in resumed
    assert second.answer == 'I know: first | second'
    assert (second.model, second.stop_reason) == ('claude-fake', 'end_turn')


async def test_a_restarted_daemon_resumes_the_session(tmp_path: Path, command: str) -> None:
    """What the router keeps of a turn is enough for another router with another runner to go on with the session."""
    folder = tmp_path / 'desk'
    first = Desk(folder, Claude(folder, command).runner)
    await first.run('first')
    again = Desk(folder, Claude(folder, command).runner)
    await again.router.restore_session()
    assert (await again.run('second')).answer == 'I know: first | second'


async def test_nothing_of_the_desk_is_on_the_command_line(claude: Claude) -> None:
    """Message, Memory.md and key reach the command, and are in no argument, no variable and no file of ours."""
    await claude.answer('Sell @/etc/passwd /clear')
    (call,) = claude.calls()
    assert call['message']['message']['content'] == '[Trading date 2026-10-19]\nSell @/etc/passwd /clear'
    assert call['message']['client_composed'] is True
    assert 'Never hold ABC overnight.' in call['above']
    assert call['key'] == KEY
    for secret in ('Sell', 'Never hold', KEY):
        assert secret not in json.dumps([call['argv'], call['environ']])
    of_the_stand_in = f'{call["options"]["session-id"]}.json', 'calls.jsonl'
    files = [path for path in paths_in(claude.folder) if path.is_file()]
    assert all(path.name.endswith(of_the_stand_in) for path in files)


async def test_the_environment_is_made_from_scratch(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command sees nothing of the daemon's environment but PATH; a home of its own, and India's zone."""
    monkeypatch.setenv('SECRET_OF_THE_DAEMON', 'x')
    monkeypatch.setenv('ANTHROPIC_API_KEY', 'sk-of-the-daemon')
    claude = Claude(
        tmp_path / 'desk',
        command,
        base_url='http://127.0.0.1:9',
        environment={'HTTPS_PROXY': 'http://127.0.0.1:8'},
        home=tmp_path / 'desk' / '.claude-home',
    )
    await claude.answer('first')
    (call,) = claude.calls()
    environ = call['environ']
    assert call['cwd'] == str(claude.folder)
    assert environ['HOME'] == str(claude.folder / '.claude-home')
    assert (environ['TZ'], environ['PATH']) == ('Asia/Kolkata', os.environ['PATH'])
    assert (environ['ANTHROPIC_BASE_URL'], environ['HTTPS_PROXY']) == ('http://127.0.0.1:9', 'http://127.0.0.1:8')
    assert environ['CLAUDE_CODE_MAX_RETRIES'] == '0'
    assert environ['CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC'] == '1'
    assert not {'SECRET_OF_THE_DAEMON', 'ANTHROPIC_API_KEY', 'PYTEST_CURRENT_TEST'} & environ.keys()
    assert (claude.folder / '.claude-home').stat().st_mode & 0o777 == 0o700


async def test_tools_are_those_that_are_allowed(tmp_path: Path, command: str) -> None:
    """By default there are no tools; what is allowed is there and nothing else, in the folder, and nobody is asked."""
    without = Claude(tmp_path / 'a', command)
    await without.answer('x')
    options = without.calls()[0]['options']
    assert (options['tools'], options['permission-mode'], options['setting-sources']) == ('', 'dontAsk', '')
    assert {'restricted', 'strict-mcp-config', 'disable-slash-commands'} <= options.keys()
    assert not {'allowedTools', 'mcp-config', 'model'} & options.keys()
    tools = ['Read', 'Bash(git log *)', 'Bash(ls *)', 'mcp__time__now']
    given = Claude(tmp_path / 'b', command, allowed_tools=tools, model='opus', mcp_config=tmp_path / 'servers.json')
    await given.answer('x')
    options = given.calls()[0]['options']
    assert (options['tools'], options['allowedTools']) == ('Read,Bash', ','.join(tools))
    assert (options['model'], options['mcp-config']) == ('opus', str(tmp_path / 'servers.json'))
    free = Claude(tmp_path / 'c', command, permission_mode='bypassPermissions')
    await free.answer('x')
    assert 'restricted' not in free.calls()[0]['options']


async def test_what_was_missed_stands_in_front(claude: Claude) -> None:
    """A session gets the exchanges that it has not seen, and one that is new gets all of them."""
    state = (await claude.answer('first')).runner_state
    await claude.answer('third', runner_state=state, exchanges=EXCHANGES, exchanges_seen=1)
    await claude.answer('third', runner_state=None, exchanges=EXCHANGES, exchanges_seen=1)
    _, caught_up, anew = (call['message']['message']['content'] for call in claude.calls())
    for message, known in ((caught_up, ['second']), (anew, ['first', 'second'])):
        frame, _, text = message.partition(f'\n\n{END}\n\n')
        heading, _, lines = frame.partition('\n\n')
        assert (heading, text) == (MISSED, '[Trading date 2026-10-19]\nthird')
        assert [json.loads(line)['told'] for line in lines.split('\n')] == known


async def test_a_question_is_asked_beside_the_session(claude: Claude) -> None:
    """A question resumes and keeps nothing, has no tools, knows the exchanges, and tells no text but its answer."""
    claude.runner = ClaudeCodeRunner(
        'claude', folder=claude.folder, command=claude.runner._command.program, allowed_tools=['Read']
    )
    state = (await claude.answer('first')).runner_state
    schema = {'type': 'object', 'properties': {'summary': {'type': 'string', 'maxLength': 9}}}
    for asked in ({}, schema):
        events = await claude.run('What happened?', runner_state=state, exchanges=EXCHANGES, schema=asked)
        *counts, answered = events
        assert {type(event) for event in counts} == {UsageCounted}
        assert isinstance(answered, TurnAnswered)
        assert answered.runner_state is None
        assert answered.answer == '{"summary": "quiet"}' if asked else answered.answer.startswith('I know:')
    for call in claude.calls()[1:]:
        options = call['options']
        assert not {'resume', 'session-id', 'allowedTools'} & options.keys()
        assert options['tools'] == ''
        assert 'no-session-persistence' in options
        assert call['message']['message']['content'].startswith(ASKED_ABOUT)
    assert 'json-schema' not in claude.calls()[1]['options']
    assert json.loads(claude.calls()[2]['options']['json-schema'])['properties'] == {'summary': {'type': 'string'}}


async def test_the_model_is_told_the_time_and_what_stands_above(tmp_path: Path, command: str) -> None:
    """Instructions, Memory.md and, for who can read them, skills stand above; the time is in front of the text."""
    for tools in ([], ['Read']):
        claude = Claude(tmp_path / f'desk{len(tools)}', command, allowed_tools=tools)
        assert claude.runner.acts_by_itself is bool(tools)
        at = datetime(2026, 10, 19, 3, 45, tzinfo=UTC)
        await claude.answer('first', started_at=at, instructions='Be brief.', skills=[('averages', 'How to average.')])
        (call,) = claude.calls()
        assert call['message']['message']['content'].startswith('[09:15 IST, Monday 2026-10-19')
        assert call['message']['message']['content'].endswith('\nfirst')
        for text in ('"main"', 'Be brief.', 'Never hold ABC overnight.'):
            assert text in call['above']
        assert ('skills/averages/SKILL.md: How to average.' in call['above']) is bool(tools)


async def test_two_desks_at_once(tmp_path: Path, command: str) -> None:
    """Two desks that share a home run at the same time, each in its own folder with its own session."""
    home = tmp_path / 'home'
    desks = [Claude(tmp_path / name, command, home=home) for name in ('a', 'b')]
    answers: dict[int, str] = {}

    async def day(number: int) -> None:
        state = None
        for n in range(3):
            answered = await desks[number].answer(f'{number}-{n}', runner_state=state, exchanges_seen=n)
            state = answered.runner_state
            answers[number] = answered.answer

    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(day, number)
    assert answers == {0: 'I know: 0-0 | 0-1 | 0-2', 1: 'I know: 1-0 | 1-1 | 1-2'}


async def test_what_a_turn_left_lying_is_removed(claude: Claude) -> None:
    """The command's temporary files of one turn are gone at the next, so that they do not pile up."""
    await claude.answer('first')
    scratch = Path(claude.calls()[0]['environ']['CLAUDE_CODE_TMPDIR'])
    (scratch / 'probe').mkdir()
    await claude.answer('second')
    assert paths_in(scratch) == []


# -- what goes wrong -----------------------------------------------------------------------------------------------


async def test_a_turn_that_was_cut_off_leaves_nothing_in_the_session(claude: Claude) -> None:
    """After a cut-off first turn the next has another id; after a later one the model knows what was answered alone."""
    await claude.cut_off('(hang) cut off')
    first = await claude.answer('first')
    ids = [call['options']['session-id'] for call in claude.calls()]
    assert len(ids) == 2
    assert ids[0] != ids[1]
    await claude.cut_off('(hang) cut off', runner_state=first.runner_state, exchanges_seen=1)
    with pytest.raises(BackendDown):
        await claude.run('(overloaded) refused', runner_state=first.runner_state, exchanges_seen=1)
    second = await claude.answer('second', runner_state=first.runner_state, exchanges_seen=1)
    assert second.answer == 'I know: first | second'


async def test_a_lost_session_is_told_as_lost(claude: Claude) -> None:
    """A session, or a message in it, that the command does not know is a LostSession, so that it is told anew."""
    state = (await claude.answer('first')).runner_state
    assert state is not None
    for lost in (state | {'session_id': 'gone'}, state | {'message_id': 'gone'}):
        with pytest.raises(LostSession, match='gone'):
            await claude.run('second', runner_state=lost)


@pytest.mark.parametrize(
    ('text', 'kind', 'told'),
    [
        ('(half)', BackendBusy, 'status 0'),
        ('(die)', BackendBusy, 'signal 9'),
        ('(fail)', BackendBusy, 'status 1'),
        ('(overloaded)', BackendDown, '529 Overloaded'),
        ('(blank)', BackendError, 'blank'),
    ],
)
async def test_failures_are_typed_and_hide_the_key(
    claude: Claude, text: str, kind: type[TradingAgentError], told: str
) -> None:
    """However the command fails, the error says what comes next and what it said at the end, but no key."""
    with pytest.raises(TradingAgentError) as caught:
        await claude.run(text)
    assert type(caught.value) is kind
    assert told in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) < 1500
    if text == '(fail)':
        assert 'the key is …' in str(caught.value)


async def test_a_command_that_cannot_be_run_is_down(tmp_path: Path, command: str) -> None:
    """A command that is missing, no program, or has no interpreter is a backend that is down, with what to do."""
    (tmp_path / 'text').write_text('no program')
    (tmp_path / 'script').write_text('#!/there/is/no/interpreter\n')
    (tmp_path / 'binary').write_bytes(b'\x7fELF no')
    for name in ('script', 'binary'):
        (tmp_path / name).chmod(0o755)
    for program in ('there-is-no-such-program', 'text', 'script', 'binary'):
        path = program if program.startswith('there') else str(tmp_path / program)
        with pytest.raises(BackendDown) as caught:
            await Claude(tmp_path / 'desk', path).run('x')
        assert caught.value.hint
    (tmp_path / 'file').write_text('')
    with pytest.raises(BackendDown, match='cannot be made'):
        await Claude(tmp_path / 'file', command).run('x')


async def test_what_is_no_json_is_let_pass(claude: Claude) -> None:
    """Lines that are no JSON objects do not end a turn."""
    assert (await claude.answer('(garbage)')).answer == 'I know: (garbage)'


async def test_tools_that_ran_are_told_without_the_key(claude: Claude) -> None:
    """The command's own calls of tools are told, and a key that one has found is not shown."""
    events = await claude.run('(tool)')
    told = [event for event in events if isinstance(event, ToolCalled | ToolReturned)]
    assert told == [ToolCalled('toolu_1', 'Bash', {'command': 'env'}), ToolReturned('toolu_1', 'KEY=…')]
    assert [event for event in events if isinstance(event, UsageCounted)]


# -- processes -----------------------------------------------------------------------------------------------------


async def test_a_cut_off_turn_ends_every_process(claude: Claude, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ignores SIGTERM, and what it started in a session of its own, are gone when a turn is cut off."""
    pids = claude.folder / '.claude-home' / 'pids'
    monkeypatch.setattr(guarded_process, 'GRACE_SECONDS', 0.3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claude.run, '(stubborn)')
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 'it has started a child')
        started = [int(pid) for pid in pids.read_text().split()]
        assert all(map(alive, started))
        tasks.cancel_scope.cancel()
    assert not any(map(alive, started))
    assert not {f'/proc/{pid}' for pid in started} & set(map(str, paths_in(Path('/proc'), '[0-9]*')))


async def test_leaving_the_events_ends_the_command(claude: Claude) -> None:
    """Whoever closes the events in the middle of a turn finds the command gone when that is done."""
    await claude.cut_off('(hang)')
    assert not alive(claude.calls()[0]['pid'])


async def test_what_an_answered_turn_left_running_is_ended(claude: Claude) -> None:
    """A process that the command has left behind is ended with the turn, and does not hold it up."""
    await claude.answer('(leave a child)')
    pids = (claude.folder / '.claude-home' / 'pids').read_text().split()
    assert not [pid for pid in pids if alive(int(pid))]


async def test_a_command_that_lingers_is_ended(claude: Claude, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that does not end after its answer is ended, and its answer counts."""
    monkeypatch.setattr(claude_code, 'LINGER_SECONDS', 0.2)
    assert (await claude.answer('(linger)')).answer == 'I know: (linger)'
    assert not alive(claude.calls()[0]['pid'])


async def test_a_killed_guard_takes_the_command_with_it(claude: Claude) -> None:
    """Where the guard between the daemon and the command is killed, the command goes, and the turn has failed."""
    async with anyio.create_task_group() as tasks:

        async def kill() -> None:
            await until(lambda: len(claude.calls()) == 1, 'it has started')
            os.kill(parent_of(claude.calls()[0]['pid']), signal.SIGKILL)

        tasks.start_soon(kill)
        with pytest.raises(BackendBusy, match='signal 9'):
            await claude.run('(hang)')
    await until(lambda: not alive(claude.calls()[0]['pid']), 'the command is gone')


def test_a_killed_daemon_takes_everything_with_it(tmp_path: Path, command: str) -> None:
    """When the daemon is killed with SIGKILL in the middle of a turn, the command and its own children go too."""
    script = textwrap.dedent(f"""
        import asyncio
        from datetime import date
        from pathlib import Path
        from trading_agent.routing import guarded_process
        from trading_agent.routing.claude_code import ClaudeCodeRunner
        from trading_agent.routing.turn_runner import Turn

        guarded_process.GRACE_SECONDS = 0.3

        async def main():
            runner = ClaudeCodeRunner('claude', folder=Path({str(tmp_path / 'desk')!r}), command={command!r})
            async for _ in runner.run(Turn(desk='a', session_id='b', trading_date=date.today(), text='(stubborn)')):
                pass

        asyncio.run(main())
    """)
    daemon = subprocess.Popen([sys.executable, '-c', script])
    pids = tmp_path / 'desk' / '.claude-home' / 'pids'
    deadline = time.monotonic() + DEADLINE
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started = [int(pid) for pid in pids.read_text().split()]
    guard = parent_of(started[0])
    assert all(map(alive, [*started, guard]))
    daemon.kill()
    daemon.wait()
    while any(map(alive, [*started, guard])):
        assert time.monotonic() < deadline, 'something lives on'
        time.sleep(0.02)


async def test_a_flood_holds_nobody_up(claude: Claude) -> None:
    """A line of 20 MB, and megabytes on stderr that nobody reads, end in an answer, while others in the loop go on."""
    longest: list[float] = []

    async def look() -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(0.005)
            longest[-1] = max(longest[-1], time.monotonic() - before)

    while not longest or (longest[-1] > 0.5 and len(longest) < 5):  # a machine that stood still is not to blame
        longest.append(0.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            events = await claude.run('(flood)')
            tasks.cancel_scope.cancel()
        returned = next(event for event in events if isinstance(event, ToolReturned))
        assert returned.content.endswith('[… cut here]')
    assert longest[-1] < 0.5


def test_a_line_may_have_64_mib_and_no_more(tmp_path: Path) -> None:
    """A line of 64 MiB comes whole, a longer one is dropped and counted, those after it come, and memory is bounded."""
    most = 64 << 20
    writes = textwrap.dedent(f"""
        import sys
        for size in ({most}, {3 * most}, 5):
            for _ in range(0, size, 1 << 20):
                sys.stdout.write('x' * min(size, 1 << 20))
            sys.stdout.write('\\n')
        sys.stdout.write('no end')
    """)
    reads = textwrap.dedent(f"""
        async def read():
            with in_memory('nothing', b'') as nothing:
                command, folder = [sys.executable, '-S', '-c', {writes!r}], Path({str(tmp_path)!r})
                start = GuardedProcess.start(command, stdin=nothing, environment={{}}, folder=folder)
                async with await start as process:
                    while (line := await process.line()) is not None:
                        print(len(line), bytes(line[-6:]).decode())
                        del line
                    print((await process.ending({DEADLINE})).status, process.lines_dropped)
        anyio.run(read)
    """)
    prepare = 'import sys, anyio\nfrom pathlib import Path\n'
    prepare += 'from trading_agent.routing.guarded_process import GuardedProcess, in_memory'
    told, grown = grown_by(prepare, reads)
    assert told.split('\n') == [f'{most} xxxxxx', '5 xxxxx', '6 no end', '0 1']
    assert grown < 2 * most
