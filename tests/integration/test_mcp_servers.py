"""A desk's MCP servers, real ones: what is called, what goes wrong, what comes back, and what is left behind."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import util
from pathlib import Path

import anyio
import pytest
from mcp_fakes import (
    HERE,
    QUICK,
    Running,
    gone,
    http_server,
    is_alive,
    need_package,
    official,
    plain,
    running,
)

from trading_agent.errors import ConfigurationError
from trading_agent.settings import McpServer
from trading_agent.tools import mcp_connection, mcp_servers, mcp_transport
from trading_agent.tools.child_process import ChildProcess
from trading_agent.tools.mcp_servers import McpServers
from trading_agent.tools.mcp_tools import McpTool, RemoteTool, tool_name, usable
from trading_agent.tools.server_settings import server_problems, server_secrets
from trading_agent.units import Duration, Size

need_package('mcp')


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """The file that servers write their orders to."""
    return tmp_path / 'orders.txt'


def lines(orders: Path) -> list[str]:
    """Returns the orders that were placed."""
    return orders.read_text().split('\n')[:-1] if orders.exists() else []


def keys(orders: Path) -> list[str]:
    """Returns their keys."""
    return [line.split(' ')[0] for line in lines(orders)]


@asynccontextmanager
async def served(how: str, orders: Path, **options: object) -> AsyncIterator[Running]:
    """Runs the official server, one way or the other."""
    if how == 'stdio':
        async with running([official(orders, **options)]) as desk:
            await desk.ready('orders')
            yield desk
    else:
        async with http_server(orders) as server, running([server.settings(**options)]) as desk:
            await desk.ready('orders')
            yield desk


# -- what is called --------------------------------------------------------------------------------------------


@pytest.mark.parametrize('how', ['stdio', 'http'])
async def test_a_server_is_listed_and_called(how: str, orders: Path) -> None:
    """The tools of a server are told with their schemas under its name, and what they give back is text."""
    async with served(how, orders, timeout=Duration(10), max_result=Size(10 << 10)) as desk:
        tools = {tool.name: tool for tool in desk.servers.tools}
        assert set(tools) == {
            f'orders__{name}' for name in ('echo', 'slow', 'huge', 'dies', 'refuses', 'picture', 'told', 'order')
        }
        assert tools['orders__order'].description == 'Places an order.'
        assert tools['orders__order'].parameters['required'] == ['symbol', 'quantity']
        assert await desk.text('orders__echo', text='naïve ₹\u2028 \0') == 'naïve ₹\u2028 \0'
        assert await desk.text('orders__picture') == '[image, image/png, 2 KiB: not shown]'
        assert 'refuses' in await desk.error('orders__refuses')
        assert await desk.error('orders__none') == "there is no tool 'orders__none'"
        huge = await desk.text('orders__huge', kib=100)
        assert huge.startswith('x' * 10_240 + '\n')
        assert huge.endswith('the first 10240 of 102400 bytes are shown)')
        assert [(told.server, told.state, told.tools) for told in desk.news] == [('orders', 'ready', 8)]


@pytest.mark.parametrize('how', ['stdio', 'http'])
async def test_the_key_goes_along(how: str, orders: Path) -> None:
    """A call carries its idempotency key in the request's `_meta`; one without a key carries none."""
    async with served(how, orders, timeout=Duration(10)) as desk:
        assert await desk.text('orders__order', 'trigger/1/1', symbol='TCS', quantity=5) == 'ordered 5 TCS'
        assert await desk.text('orders__order', 'trigger/1/2', symbol='INFY', quantity=1) == 'ordered 1 INFY'
        assert lines(orders) == ['trigger/1/1 TCS 5', 'trigger/1/2 INFY 1']
        assert (await desk.text('orders__told')).startswith(('None', '{}'))


async def test_a_child_sees_nothing_of_the_environment(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has PATH, HOME, LANG and what is configured, and its secrets stand in no result and no news."""
    monkeypatch.setenv('BROKER_PASSWORD', 'open sesame')
    monkeypatch.setenv('OTHER_SECRET', 'not for it')
    monkeypatch.setenv('LANG', 'C.UTF-8')
    env = {'MODE': 'paper', 'BROKER_KEY_env': 'BROKER_PASSWORD'}
    async with running([official(orders, env=env), plain(orders, 'exits', env=env)]) as desk:
        await desk.ready('orders')
        told = await desk.text('orders__told')
        assert told.endswith("['BROKER_KEY', 'HOME', 'LANG', 'MODE', 'PATH']")
        assert await desk.text('orders__echo', text='open sesame, they said') == '…, they said'
        down = next(news for news in desk.news if news.server == 'exits')
        assert down.error == 'it ended with exit code 1; it said: there is no broker for …'
        assert 'sesame' not in repr(desk.news + desk.servers.news)


async def test_a_key_for_an_address_is_sent_as_a_header(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of an address is sent as a bearer token, which no result shows."""
    monkeypatch.setenv('MCP_TOKEN', 'open sesame')
    async with served('http', orders, api_key_env='MCP_TOKEN') as desk:
        assert 'Bearer … [' in await desk.text('orders__told')


async def test_a_server_of_somebody_else(orders: Path) -> None:
    """A server from the registry, which nobody here wrote, tells the time in India."""
    need_package('mcp_server_time')
    command = [sys.executable, '-m', 'mcp_server_time', '--local-timezone=Asia/Kolkata']
    async with running([McpServer(name='time', command=command)]) as desk:
        await desk.ready('time')
        assert '+05:30' in await desk.text('time__get_current_time', timezone='Asia/Kolkata')
        assert 'Mars' in await desk.error('time__get_current_time', timezone='Mars/Base')


async def test_the_newer_protocol_is_spoken_where_only_that_is(orders: Path) -> None:
    """A server that refuses the handshake is asked by the protocol that has none, and gets its key there too."""
    async with running([plain(orders, 'modern')]) as desk:
        await desk.ready('modern')
        assert await desk.text('modern__echo', text='hello') == 'hello'
        await desk.text('modern__order', 'k/1/1', symbol='TCS')
        assert keys(orders) == ['k/1/1']


# -- what goes wrong -------------------------------------------------------------------------------------------

MISBEHAVIOUR = {
    'dies': 'was lost',
    'hangs': 'did not answer within 0.5 s: whether it did what was asked is not known',
    'floods': 'did not answer within 0.5 s',
    'endless': 'was lost (it wrote a line of more than 8 MiB)',
    'nonsense': 'its answer makes no sense: content',
    'refuses': 'the broker is closed',
}


@pytest.mark.parametrize('tool', MISBEHAVIOUR)
async def test_whatever_a_tool_does_the_next_call_works(tool: str, orders: Path) -> None:
    """A call of a server that dies, hangs, floods or babbles is an error within its limit, and a later one works."""
    limit = 0.5 if '0.5 s' in MISBEHAVIOUR[tool] else 600
    async with running([plain(orders, timeout=Duration(limit))]) as desk:
        with anyio.fail_after(30):
            told = await desk.error(f'good__{tool}')
        assert MISBEHAVIOUR[tool] in told
        await desk.works_again('good__echo')
    assert tool not in ('nonsense', 'refuses') or [news.state for news in desk.news] == ['ready']


async def test_what_is_no_message_is_skipped(orders: Path) -> None:
    """A program that prints other things to its stdout too is understood all the same."""
    async with running([plain(orders)]) as desk:
        assert await desk.text('good__prints') == 'prints'
        assert await desk.text('good__mib', mib=7) != ''
        assert 'more than 8 MiB' in await desk.error('good__mib', mib=9)


async def test_arguments_that_cannot_be_sent_are_not(orders: Path) -> None:
    """Arguments that no JSON can hold are an error, and the connection stays."""
    async with running([plain(orders)]) as desk:
        assert 'cannot be sent' in await desk.error('good__echo', text='\ud800')
        assert await desk.text('good__echo', text='fine') == 'fine'
        assert len(desk.news) == 1


async def test_a_server_that_does_not_read_holds_up_nobody(orders: Path) -> None:
    """A server that reads nothing any more is given up, and its calls end within their limit."""
    async with running([plain(orders, 'deaf', timeout=Duration(0.3))]) as desk:
        for _ in range(4):
            with anyio.fail_after(30):
                await desk.error('deaf__echo', text='x' * 3_000_000)
        down = next(news.error for news in desk.news if news.state == 'down')
        assert down in ('it does not read its stdin', 'it does not answer any more')


async def test_a_server_killed_in_the_middle_of_calls(orders: Path) -> None:
    """Of 30 calls in whose middle the server is killed each ends as an error, the next works, no key comes twice."""
    async with running([plain(orders, timeout=Duration(600))]) as desk:
        for number in range(30):
            pid = int(await desk.text('good__pid'))

            async def kill(pid: int = pid, number: int = number) -> None:
                if number % 3:  # else at any moment, also before it has read the call
                    while f'k/1/{number}' not in keys(orders):  # noqa: ASYNC110
                        await anyio.sleep(0.001)
                os.kill(pid, signal.SIGKILL)

            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(kill)
                    told = await desk.error('good__order', f'k/1/{number}', symbol='TCS', pause=600)
            assert 'was lost' in told
        assert await desk.text('good__echo', text='alive') == 'alive'
    assert len(keys(orders)) == len(set(keys(orders)))
    assert len(keys(orders)) >= 20


async def test_a_server_over_http_comes_back(orders: Path) -> None:
    """A server over HTTP that is killed in the middle of a call, and started again later, is used again."""
    async with http_server(orders) as server, running([server.settings(timeout=Duration(3))]) as desk:
        for number in range(2):
            await desk.ready('orders')
            async with anyio.create_task_group() as tasks:

                async def kill(number: int = number) -> None:
                    while f'k/1/{number}' not in keys(orders):  # noqa: ASYNC110
                        await anyio.sleep(0.005)
                    await server.kill()

                tasks.start_soon(kill)
                told = await desk.error('orders__order', f'k/1/{number}', symbol='TCS', quantity=1, pause=60)
            assert 'not known' in told or 'gave no result' in told
            told = await desk.error('orders__echo', text='who is there')
            await server.start()
            await desk.works_again('orders__echo')
    assert keys(orders) == ['k/1/0', 'k/1/1']


async def test_a_server_over_http_that_hangs(orders: Path) -> None:
    """A server over HTTP that stands still is an error within the limit, and works once it goes on."""
    async with http_server(orders) as server, running([server.settings(timeout=Duration(0.5))]) as desk:
        await desk.ready('orders')
        server.send(signal.SIGSTOP)
        try:
            for _ in range(3):
                with anyio.fail_after(30):
                    await desk.error('orders__echo', text='hello')
        finally:
            server.send(signal.SIGCONT)
        await desk.works_again('orders__echo')


async def test_a_server_that_is_gone_while_idle_is_noticed(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server over HTTP is looked after while nobody calls it."""
    monkeypatch.setattr(mcp_connection, 'LOOK_SECONDS', 0.1)
    async with http_server(orders) as server, running([server.settings()]) as desk:
        await desk.ready('orders')
        await server.kill()
        with anyio.fail_after(30):
            while desk.servers.news[0].state != 'down':  # noqa: ASYNC110
                await anyio.sleep(0.01)


@pytest.mark.parametrize('arguments', [(), ('json',)])
async def test_an_answer_that_is_too_long_is_an_error(arguments: tuple[str, ...], orders: Path) -> None:
    """Of an HTTP answer no more is taken than a message may have, and the connection stays."""
    async with http_server(orders, *arguments) as server, running([server.settings(timeout=Duration(10))]) as desk:
        await desk.ready('orders')
        assert 'more than 8 MiB' in await desk.error('orders__huge', kib=9 << 10)
        assert await desk.text('orders__echo', text='fine') == 'fine'
        assert len(desk.news) == 1


async def test_a_redirect_is_not_followed(orders: Path) -> None:
    """A call is one request to the address that is configured, and a redirect takes it nowhere else."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b'\r\n\r\n')).split(b' ')[1])
        writer.write(b'HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, '127.0.0.1', 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with running([McpServer(name='moved', url=f'http://127.0.0.1:{port}/mcp')]) as desk:
            assert 'Redirect to' in (await desk.first_news()).error
    assert set(asked) == {b'/mcp'}


# -- starting --------------------------------------------------------------------------------------------------

BROKEN = {
    'exits': 'it ended with exit code 1; it said: there is no broker for None',
    'invalid': 'its answer makes no sense: tools.0.inputSchema: Field required',
    'endless': 'it wrote a line of more than 8 MiB',
    'future': 'Unsupported protocol version from the server: 2999-01-01',
}


async def test_ten_servers_of_which_three_are_broken(orders: Path) -> None:
    """A desk with ten servers of which three are broken starts at once and works; each broken one is told once."""
    good = [plain(orders, name=f'good{number}') for number in range(7)]
    broken = [plain(orders, 'exits'), plain(orders, 'invalid'), McpServer(name='none', command=['/no/such/program'])]
    async with running([*broken, *good]) as desk:
        await desk.ready(*(server.name for server in good))
        for server in good:
            assert await desk.text(f'{server.name}__echo', text='hello') == 'hello'
        await anyio.sleep(1)  # several tries of the broken ones
        down = [news for news in desk.news if news.state == 'down']
        assert {news.server for news in down} == {'exits', 'invalid', 'none'}
        assert len(down) == 3
        assert all(tool.server not in ('exits', 'invalid', 'none') for tool in desk.servers.tools)
        states = {news.server: news.state for news in desk.servers.news}
        assert states == {news.server: 'down' for news in down} | {server.name: 'ready' for server in good}


@pytest.mark.parametrize('mode', BROKEN)
async def test_why_a_server_does_not_start_is_told(mode: str, orders: Path) -> None:
    """What keeps a server from starting is told in words that an operator can use."""
    async with running([plain(orders, mode)]) as desk:
        assert (await desk.first_news()).error == BROKEN[mode]


@pytest.mark.parametrize('mode', ['silent', 'garbage'])
async def test_a_server_that_never_starts_holds_up_nobody(
    mode: str, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a desk does not wait for a server that says nothing; it is given up after its time, told once."""
    monkeypatch.setattr(mcp_servers, 'START_PATIENCE_SECONDS', 0.2)
    monkeypatch.setattr(mcp_connection, 'START_SECONDS', 2.5)
    async with running([plain(orders, mode)]) as desk:
        assert desk.servers.tools == []
        assert desk.news == []
        assert (await desk.first_news()).error == 'it did not start within 2.5 s'


async def test_a_server_that_starts_late_brings_its_tools_late(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes longer than a desk waits has its tools later, without anybody doing anything."""
    monkeypatch.setattr(mcp_servers, 'START_PATIENCE_SECONDS', 0.1)
    async with running([plain(orders, 'late')]) as desk:
        assert desk.servers.tools == []
        await desk.ready('late')
        assert await desk.text('late__echo', text='here I am') == 'here I am'


async def test_a_server_that_keeps_dying_is_left_alone_for_longer(orders: Path) -> None:
    """The pause before a server is started again doubles, up to the longest."""
    async with running([plain(orders)], delays=(0.02, 0.1)) as desk:
        for _ in range(5):
            await desk.error('good__dies')
            await desk.ready('good')
        delays = [news.delay_ms for news in desk.news if news.state == 'down']
        assert 10 <= delays[0] <= 20 <= delays[1] <= 40
        assert all(50 <= delay <= 100 for delay in delays[3:])


async def test_names_never_clash(orders: Path) -> None:
    """Names that do not fit are shortened and told apart; what cannot be used is left out, with the reason."""
    async with running([plain(orders, 'odd'), plain(orders, 'pages')]) as desk:
        await desk.ready('odd', 'pages')
        names = [tool.name for tool in desk.servers.tools if tool.server == 'odd']
        assert all(len(name) <= 64 and name.startswith('odd__') and name.isascii() for name in names)
        assert len(names) == len(set(names)) == 6
        assert {'odd__twice', 'odd___first'} < set(names)
        dotted = next(tool for tool in desk.servers.tools if tool.remote_name == 'a.b')
        assert dotted.name.startswith('odd__a_b-')
        assert len(dotted.description) == 4000
        assert await desk.text(dotted.name) == 'a.b'
        left_out = {why.split(':')[0] for news in desk.news for why in news.left_out if news.server == 'odd'}
        assert left_out == {'odd__twice', 'odd__far', 'odd__wrong', 'odd__long'}
        assert len([tool for tool in desk.servers.tools if tool.server == 'pages']) == 11  # the same ones, 20 times


async def test_only_what_is_allowed_is_there(orders: Path) -> None:
    """A tool that no pattern of `allow` fits is neither told nor called."""
    async with running([plain(orders), plain(orders, name='other')], allow=['good__e*', 'other__pid']) as desk:
        assert [tool.name for tool in desk.servers.tools] == ['good__echo', 'good__endless', 'other__pid']
        assert await desk.error('good__order', 'k/1/1') == "there is no tool 'good__order'"
        assert keys(orders) == []


# -- cancelling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('how', ['stdio', 'http'])
async def test_a_cancelled_call_leaves_the_server_usable(how: str, orders: Path) -> None:
    """Cancellation ends a call at once, and the next one is answered."""
    async with served(how, orders, timeout=Duration(600)) as desk:
        for _ in range(5):
            with anyio.fail_after(30), anyio.move_on_after(0.1):
                await desk.servers.call('orders__slow', {'seconds': 600})
            assert await desk.text('orders__echo', text='hello') == 'hello'
        assert len(desk.news) == 1


async def test_a_call_that_was_given_up_is_not_made_later(orders: Path) -> None:
    """A call that waits for its server, and is cancelled or too late, is never sent once the server is back."""
    async with running([plain(orders, timeout=Duration(1))], delays=(3.0, 3.0)) as desk:
        os.kill(int(await desk.text('good__pid')), signal.SIGKILL)
        await desk.error('good__echo')
        told = await desk.error('good__order', 'late')
        assert told.endswith('nothing was sent to it')
        with anyio.move_on_after(0.1):
            await desk.servers.call('good__order', {}, key='cancelled')
        await desk.ready('good')
        await desk.text('good__order', 'in time', symbol='TCS')
    assert lines(orders) == ['in time TCS']


async def test_calls_side_by_side(orders: Path) -> None:
    """Calls of one server go side by side, and each gets its own answer."""
    async with served('stdio', orders, timeout=Duration(10)) as desk:
        answers: dict[int, str] = {}

        async def ask(number: int) -> None:
            answers[number] = await desk.text('orders__echo', text=str(number))

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(ask, number)
        assert answers == {number: str(number) for number in range(50)}


# -- what is left behind ---------------------------------------------------------------------------------------


def children(of: int | str = 'self') -> set[int]:
    """Returns the processes that one has started and that are there."""
    pids: list[str] = []
    for task in Path(f'/proc/{of}/task').iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            pids += (task / 'children').read_text().split()
    return {int(pid) for pid in pids if is_alive(int(pid))}


def opened() -> int:
    """Returns how many files this process has open."""
    return len(list(Path('/proc/self/fd').iterdir()))


@pytest.mark.parametrize('mode', ['good', 'stubborn', 'parent', 'silent', 'garbage', 'deaf'])
async def test_no_process_is_left_behind(mode: str, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a stop no server is left, nor anybody whom one has started, whatever they did."""
    monkeypatch.setattr(mcp_servers, 'START_PATIENCE_SECONDS', 0.5)
    before = children()
    grandchildren: set[int] = set()
    async with running([plain(orders, mode)]):
        with anyio.fail_after(30):
            while not (begun := children() - before) or (mode == 'parent' and not grandchildren):
                await anyio.sleep(0.02)
                grandchildren = set().union(*map(children, begun))
    assert children() == before
    for pid in grandchildren:
        await gone(pid, 1)


async def test_what_nobody_reads_is_not_taken_in() -> None:
    """Of a child that writes on and on only what fits a few reads is held, and the rest waits in its pipe."""
    script = 'while True: print("x" * 1000)'
    process = await ChildProcess.start([sys.executable, '-S', '-c', script], dict(os.environ), 1 << 20)
    try:
        assert await process.next_line() == b'x' * 1000
        await anyio.sleep(0.5)  # time in which it would write a hundred MiB
        assert len(process._pipes._lines) < 2000
        for _ in range(5000):
            assert await process.next_line() == b'x' * 1000
    finally:
        await process.stop()


async def test_nothing_piles_up(orders: Path) -> None:
    """A server that is started 20 times leaves no open files and no tasks behind."""
    async with running([plain(orders)]) as desk:
        await desk.text('good__echo')
        files, tasks = opened(), len(asyncio.all_tasks())
        for _ in range(20):
            await desk.error('good__dies')
            await desk.text('good__echo')
        await anyio.sleep(0.1)
        assert opened() <= files + 2
        assert len(asyncio.all_tasks()) <= tasks + 2


async def test_it_can_be_run_again(orders: Path) -> None:
    """Servers that were stopped, as their desk was, are started anew by the next run."""
    desk = McpServers('main', [plain(orders)], delays=QUICK)
    pids = set()
    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            await tasks.start(desk.run)
            pids.add((await desk.call('good__pid', {})).text)
            tasks.cancel_scope.cancel()
        outcome = await desk.call('good__pid', {})
        assert outcome.is_error
        assert 'it was stopped' in outcome.text
    assert len(pids) == 3


async def test_a_killed_daemon_takes_its_servers_along(orders: Path, tmp_path: Path) -> None:
    """A server whose daemon is killed sees the end of its stdin, and leaves."""
    pid_file = tmp_path / 'pid'
    script = f"""
import sys, anyio
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from mcp_fakes import plain, running

async def main():
    async with running([plain(Path({str(orders)!r}))]) as desk:
        Path({str(pid_file)!r}).write_text(await desk.text('good__pid') + '.')
        await anyio.sleep_forever()

anyio.run(main)
"""
    daemon = subprocess.Popen([sys.executable, '-c', script])  # noqa: ASYNC220
    try:
        with anyio.fail_after(30):
            while not pid_file.exists() or not pid_file.read_text().endswith('.'):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        pid = int(pid_file.read_text()[:-1])
        assert is_alive(pid)
    finally:
        daemon.kill()
        daemon.wait()
    await gone(pid, 20)


async def test_what_was_said_stands_in_no_log(orders: Path) -> None:
    """Whatever a server answers, the SDK's own logging of it goes nowhere, and the news repeat nothing of it."""
    records: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(f'{record.name} {self.format(record)}')

    root, handler = logging.getLogger(), Keeping()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        async with running([plain(orders)]) as desk:
            for tool in ('prints', 'nonsense', 'refuses', 'echo', 'dies'):
                await desk.servers.call(f'good__{tool}', {'text': 'the secret plan'})
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
    assert [record for record in records if record.startswith(('mcp', 'client'))] == []
    assert 'secret plan' not in str(records) + repr([news.error for news in desk.news])


async def test_nobody_calls_what_blocks(orders: Path) -> None:
    """Starting, calling and ending servers does nothing that blocks the event loop."""
    from blockbuster import blockbuster_ctx

    with blockbuster_ctx('trading_agent'):
        async with running([plain(orders), plain(orders, 'exits')]) as desk:
            await desk.text('good__echo')
            await desk.error('good__dies')
            await desk.text('good__echo')


# -- configuring -----------------------------------------------------------------------------------------------


def test_without_the_extra_it_is_said_what_to_install(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desk with servers needs the extra, and says how to get it; one without needs nothing."""
    monkeypatch.setattr(util, 'find_spec', lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'trading-agent\[mcp\]'"):
        McpServers('main', [plain(orders)])
    McpServers('main', [])


async def test_a_desk_without_servers_needs_no_task() -> None:
    """Without servers `run` starts and ends at once."""
    desk = McpServers('main', [])
    async with anyio.create_task_group() as tasks:
        await tasks.start(desk.run)
    assert desk.tools == []


def test_missing_secrets_are_told_together(orders: Path) -> None:
    """Every secret that a server names and that is missing is told by its name, none by its value."""
    server = plain(orders, env={'A_env': 'NO_SUCH_A', 'B_credential': 'no-such-b'})
    with pytest.raises(ConfigurationError) as error:
        server_secrets(server, 'main', {})
    assert [problem.where for problem in error.value.problems] == ['main.env.A_env', 'main.env.B_credential']
    given = server_secrets(plain(orders, env={'A_env': 'THE_A', 'C': 'plain'}), 'main', {'THE_A': 'open sesame'})
    assert given.env == {'A': 'open sesame', 'C': 'plain'}
    assert given.secrets == {'open sesame'}


@pytest.mark.parametrize(
    ('options', 'told'),
    [
        ({'name': 'a__b', 'command': ['x']}, "'a__b' is no name"),
        ({'name': 'a_', 'command': ['x']}, "'a_' is no name"),
        ({'name': 'a' * 25, 'command': ['x']}, 'is no name'),
        ({'name': 'a'}, 'has neither command nor url'),
        ({'name': 'a', 'command': ['x'], 'url': 'http://h/mcp'}, 'has a command and a url'),
        ({'name': 'a', 'command': ['']}, 'names no program'),
        ({'name': 'a', 'command': ['x'], 'env': {'A=B': 'c'}}, 'is no name of a variable'),
        ({'name': 'a', 'command': ['x'], 'api_key_env': 'KEY'}, 'are for a url'),
        ({'name': 'a', 'url': 'localhost:9000'}, 'is no address'),
        ({'name': 'a', 'url': 'http://[x'}, 'is no address'),
        ({'name': 'a', 'url': 'http://me:hunter2@h/mcp'}, 'has a password in it'),
        ({'name': 'a', 'url': 'http://h/mcp', 'env': {'A': 'b'}}, 'is for a command'),
        ({'name': 'a', 'url': 'http://h/mcp', 'headers': {'A B': 'c'}}, 'is no header'),
        ({'name': 'a', 'url': 'http://h/mcp', 'headers': {'A': 'b\r\nC: d'}}, 'is no header'),
        ({'name': 'a', 'url': 'http://h/mcp', 'api_key_env': 'A', 'api_key_credential': 'b'}, 'given twice'),
    ],
)
def test_a_mistake_in_the_configuration_is_told(options: dict[str, object], told: str) -> None:
    """Each mistake is told once, with its place, and no password."""
    [problem] = server_problems([McpServer(**options)], 'desks[0]')  # type: ignore[arg-type]
    assert problem.where.startswith('desks[0].mcp_servers[0]')
    assert told in problem.what
    assert 'hunter2' not in str(problem)


def test_a_sound_configuration_has_no_problems() -> None:
    """Two servers of different names, one of each kind, are fine; two of the same name are not."""
    sound = [McpServer(name='time', command=['mcp-server-time']), McpServer(name='net-2', url='https://h:9000/mcp')]
    assert list(server_problems(sound, 'desks[0]')) == []
    assert ['a second server' in problem.what for problem in server_problems([sound[0]] * 2, 'd')] == [True]


# -- tools -----------------------------------------------------------------------------------------------------


def only(schema: dict[str, object]) -> McpTool:
    """Returns a tool whose arguments have this schema."""
    [tool], left_out = usable('s', [RemoteTool('t', '', {'type': 'object', **schema})])
    assert left_out == []
    return tool


def test_arguments_are_checked_before_they_are_sent() -> None:
    """Arguments that do not fit a tool's schema are refused here, and what they are is left as it is."""
    tool = only({'properties': {'quantity': {'type': 'integer'}}, 'required': ['quantity']})
    arguments = {'quantity': 5}
    assert tool.checked(arguments) == arguments
    with pytest.raises(ValueError, match='quantity'):
        tool.checked({'quantity': 'all of it'})


def test_a_pattern_that_takes_for_ever_is_not_tried() -> None:
    """A regular expression of a server's is never run here: not even what it does not match is refused."""
    evil = {'type': 'string', 'pattern': '^(a+)+$'}
    tool = only({'properties': {'a': evil, 'pattern': {'type': 'integer'}}, 'additionalProperties': False})
    tool.checked({'a': 'aaaa!'})
    with pytest.raises(ValueError, match='pattern'):
        tool.checked({'pattern': 'x'})
    assert tool.parameters['properties']['a'] == evil  # what the model is told is the server's own
    only({'patternProperties': {'^x': {}}, 'additionalProperties': False}).checked({'x1': 1})


def test_a_server_name_and_a_tool_name_make_one_name() -> None:
    """Different tools have different names, whatever is in them."""
    tools = ['a', 'a.b', 'a/b', 'a b', '', '_a', 'x' * 64, 'x' * 65, 'é', 'e\u0301']
    names = [tool_name(server, tool) for server in ('s', 's-1', 's_1') for tool in tools]
    assert len(set(names)) == len(names)
    assert all(1 <= len(name) <= 64 for name in names)


@pytest.mark.parametrize('fault', ['reads', 'speaks'])
async def test_a_flood_leaves_the_loop_to_others(fault: str, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a server floods its connection, other tasks get their turn, and it is given up in the end."""
    if fault == 'speaks':
        monkeypatch.setattr(mcp_transport, 'MOST_WITHOUT_AN_ANSWER', 1 << 20)
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            began = time.monotonic()
            await anyio.sleep(0.001)
            gaps.append(time.monotonic() - began)

    async with (
        running([plain(orders, timeout=Duration(1 if fault == 'reads' else 60))]) as desk,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(tick)
        told = await desk.error('good__floods')
        tasks.cancel_scope.cancel()
        assert 'did not answer' in told if fault == 'reads' else 'was lost (it wrote 1 MiB and no answer)' in told
    assert sorted(gaps)[len(gaps) // 2] < 0.1
