"""A desk whose model calls tools: those of an MCP server that nobody here wrote, by each API, and its own."""

import importlib.util
import json
import os
import signal
import sysconfig
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from desk_files import DeskFiles, Line
from embedded_desk import MORNING, TODAY, EmbeddedDesk
from process import Start, eventually, until

from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon.desk import Desk as RunningDesk
from trading_agent.events import ToolCalled, ToolFailed, ToolServerUp
from trading_agent.settings import McpServer
from trading_agent.trigger import Trigger

if TYPE_CHECKING:
    from llmock.scenarios import Reply

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

KINDS = {'anthropic': 'anthropic', 'openai': 'openai_compatible'}
"""Whose API, and the kind of backend that speaks it."""

KEY = 'sk-test-4f9d2c7ab81e'
TIME = 'time__get_current_time'
ZONE = {'timezone': 'Asia/Kolkata'}
QUESTION = 'What time is it?'
NOTED = 'TCS moves before its results.'
GIVEN = 'I was told: '
"""What the model puts in front of what a tool gave back."""

REVIEW = json.dumps({'summary': 'The desk took a note.', 'memory': f'- {NOTED}\n', 'reasons': 'it was noted down'})


class Model:
    """The model behind the API: it calls the tool that a message is about, and then tells what it was given.

    Attributes:
        calls: Tools and their arguments, by the end of the message that they are called for.
        hangs: Whether it says nothing more once a tool has given something back.
        hanging: How often it did so.
        asked: The requests, the oldest first.
        url: The address of the API.
    """

    def __init__(self) -> None:
        self.calls: dict[str, tuple[str, dict[str, Any]]] = {QUESTION: (TIME, ZONE)}
        self.hangs = False
        self.hanging = 0
        self.asked: list[dict[str, Any]] = []
        self.url = ''

    def reply(self, body: dict[str, Any]) -> 'Reply':
        """Returns what it says to a request."""
        from llmock.scenarios import Reply, ToolCall

        what, _, text = said_in(body)[-1]
        if what == 'result':
            return Reply(text=GIVEN + text)
        if 'Review it, and answer with one JSON object' in text:
            return Reply(text=REVIEW)
        if '"actions"' in text:
            return Reply(text='{"actions": []}')
        if 'was cut off after these calls' in text:
            return Reply(text='I leave it at that.')
        for end, call in self.calls.items():
            if text.endswith(end):
                return Reply(tool_calls=(ToolCall(*call),))
        return Reply(text='Good.')


class Overhearing:
    """Stands in front of the server, and lets the model decide by what it is asked."""

    def __init__(self, app: App, model: Model, script: Callable[['Reply'], None]) -> None:
        self._app = app
        self._model = model
        self._script = script

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope['type'] != 'http' or scope['method'] != 'POST':
            await self._app(scope, receive, send)
            return
        data, more = b'', True
        while more:
            message = await receive()
            data, more = data + message.get('body', b''), message.get('more_body', False)
        body = json.loads(data)
        self._model.asked.append(body)
        if self._model.hangs and said_in(body)[-1][0] == 'result':
            self._model.hanging += 1
            await receive()  # until the client leaves
            return
        self._script(self._model.reply(body))
        whole: list[Message] = [{'type': 'http.request', 'body': data, 'more_body': False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, again, send)


def said_in(body: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the conversation of a request to either API: `user`, `assistant`, `call` or `result`, an id, a text."""
    said: list[tuple[str, str, str]] = []
    for message in body['messages']:
        role = message['role']
        for block in blocks_of(message.get('content')):
            if block['type'] == 'tool_use':
                said.append(('call', block['id'], f'{block["name"]} {json.dumps(block["input"])}'))
            elif block['type'] == 'tool_result':
                said.append(('result', block['tool_use_id'], text_of(block.get('content'))))
            elif role == 'tool':
                said.append(('result', message['tool_call_id'], block['text']))
            else:
                said += [(role, '', block['text'])] if role != 'system' else []
        for call in message.get('tool_calls') or ():
            arguments = json.dumps(json.loads(call['function']['arguments']))
            said.append(('call', call['id'], f'{call["function"]["name"]} {arguments}'))
    return said


def blocks_of(content: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - as the APIs take it
    """Returns a message's content as blocks."""
    return [{'type': 'text', 'text': content}] if isinstance(content, str) else content or []


def text_of(content: Any) -> str:  # noqa: ANN401 - as the APIs take it
    """Returns a message's content as text."""
    return '\n\n'.join(block['text'] for block in blocks_of(content))


def schemas_in(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of each tool that a request offers."""
    tools = [tool.get('function', tool) for tool in body.get('tools', [])]
    return {tool['name']: tool.get('input_schema', tool.get('parameters')) for tool in tools}


def require_pairs(body: dict[str, Any]) -> None:
    """Sees to it that each call in a request is followed by its result, and no result comes without its call."""
    said = said_in(body)
    for number, (what, call_id, _) in enumerate(said):
        if what == 'call':
            assert [each[1] for each in said[number + 1 :] if each[0] == 'result'].count(call_id) == 1, said
        if what == 'result':
            assert [each[1] for each in said[:number] if each[0] == 'call'].count(call_id) == 1, said
    assert said[-1][0] in ('user', 'result'), said


def require_now(answer: str, since: datetime) -> None:
    """Sees to it that an answer has the time in India, as the server tells it, and that it was asked just now."""
    told = json.loads(answer.removeprefix(GIVEN))
    assert told['timezone'] == 'Asia/Kolkata'
    instant = datetime.fromisoformat(told['datetime'])
    assert instant.utcoffset() == timedelta(hours=5, minutes=30)
    assert since - timedelta(seconds=1) <= instant <= datetime.now(UTC)


def journal_of(files: DeskFiles, session_id: str) -> list[Line]:
    """Returns the records of a session's journal."""
    lines = (files.folder / 'journal' / f'{session_id}.jsonl').read_text().split('\n')
    return [json.loads(line) for line in lines if line]


def time_servers(parent: int) -> list[int]:
    """Returns the time servers that a process has started and that run."""
    found = []
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try:
            state, of = stat.read_text().rpartition(')')[2].split()[:2]
            command = stat.with_name('cmdline').read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == parent and state != 'Z' and b'mcp-server-time' in command:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(params=list(KINDS))
def api(request: pytest.FixtureRequest) -> str:
    """Each API in turn."""
    return str(request.param)


def need(*packages: str) -> None:
    """Skips the test that needs packages which are not installed, or fails where everything is to be tried."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        reason = f'SKIPPED: not installed: {", ".join(missing)}: no real model API called a real tool'
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[McpServer]:
    """The time server, which is found by PATH."""
    need('mcp', 'mcp_server_time')
    monkeypatch.setenv('PATH', os.pathsep.join([sysconfig.get_path('scripts'), os.environ['PATH']]))
    return [McpServer(name='time', command=['mcp-server-time', '--local-timezone=Asia/Kolkata'])]


@pytest.fixture
def model(api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model behind an API."""
    need('anthropic', 'openai', 'llmock')
    from llmock.simulation import MockResponseSettings
    from llmock.testing import LLMockServer

    monkeypatch.setenv('SOME_KEY', KEY)
    model = Model()
    server = LLMockServer(responses=MockResponseSettings(tool_mode='off'))
    server.app.add_middleware(Overhearing, model=model, script=server.state.scenarios.add)
    with server:
        model.url = server.base_url(api)
        yield model
    assert server.state.scenarios.pending() == []


# -- the real process ------------------------------------------------------------------------------------------

CONFIG = """
[backends.model]
kind = "{kind}"
model = "some-model"
api_key_env = "SOME_KEY"
base_url = "{url}"

[[desks]]
name = "main"
backends = ["model"]
mcp_servers = [{{ name = "time", command = ["mcp-server-time", "--local-timezone=Asia/Kolkata"] }}]
read_only_tools = ["time__*"]
"""


def test_a_real_server_is_called(start: Start, servers: list[McpServer], model: Model, api: str) -> None:
    """A server's tool is offered, called and told, and all of that kept; one that is killed is there again."""
    process = start(CONFIG.format(kind=KINDS[api], url=model.url)).ready()
    process.wait_for('tool_server_up', server='time', tools=2)
    (server,) = time_servers(process.pid)
    files = process.files_of()
    since = datetime.now(UTC)
    process.send(QUESTION, id='first')
    process.wait_for('turn_finished', trigger_id='first')

    schemas = schemas_in(model.asked[0])
    assert set(schemas) == {'note', 'read_skill', 'wake_me', TIME, 'time__convert_time'}
    assert schemas[TIME]['required'] == ['timezone']
    assert "Use 'Asia/Kolkata' as local timezone" in schemas[TIME]['properties']['timezone']['description']
    (exchange,) = files.exchanges()
    require_now(exchange['answer'], since)
    told = process.wait_for('tool_called', trigger_id='first')
    assert (told['tool'], told['backend']) == (TIME, 'model')
    require_journal(journal_of(files, files.session_ids()[0]), told['call_id'], exchange['answer'])

    process.send('Thank you.', id='second')
    process.wait_for('turn_finished', trigger_id='second')
    _, given, after = model.asked
    assert [what for what, _, _ in said_in(given)] == ['user', 'call', 'result']
    assert said_in(after)[-2] == ('assistant', '', exchange['answer'])
    assert said_in(after)[-1][2].endswith('Thank you.')

    os.kill(server, signal.SIGKILL)
    process.wait_for('tool_server_down', server='time')
    process.wait_for('tool_server_up', server='time', count=2)
    (again,) = time_servers(process.pid)
    assert again != server
    since = datetime.now(UTC)
    process.send(QUESTION, id='third')
    process.wait_for('turn_finished', trigger_id='third')
    require_now(files.exchanges()[-1]['answer'], since)

    assert process.stop() == 0
    until(lambda: not Path(f'/proc/{again}').exists(), 'the server is gone with its desk')
    assert files.outcomes() == {'first': 'answered', 'second': 'answered', 'third': 'answered'}
    of_desk = [line for line in process.lines if line.get('desk') == 'main']
    warned = [line['event'] for line in of_desk if line['level'] in ('warning', 'error', 'critical')]
    assert warned == ['tool_server_down']
    for body in model.asked:
        require_pairs(body)


def require_journal(records: list[Line], call_id: str, answer: str) -> None:
    """Sees to it that a journal has the one call, its result behind it, and then the answer."""
    (called,) = [number for number, record in enumerate(records) if record['type'] == 'tool_call']
    call = records[called]
    assert (call['id'], call['name'], call['arguments'], call['read_only']) == (call_id, TIME, ZONE, True)
    said = [record['message'] for record in records[called:] if record['type'] == 'message']
    (result,) = [message for message in said if message.get('tool_call_id') == call_id]
    assert result['name'] == TIME
    assert not result.get('is_error')
    assert answer == GIVEN + result['content']
    assert said.index(result) < len(said) - 1


# -- a daemon within the test ----------------------------------------------------------------------------------


class DeskWithTools(EmbeddedDesk):
    """The desk `main`, with a model that calls tools, and with these settings."""

    def __init__(self, folder: Path, api: str, model: Model, **settings: Any) -> None:  # noqa: ANN401 - a desk's
        options = {'model': 'some-model', 'api_key_env': 'SOME_KEY', 'base_url': model.url}
        backends = {'model': Backend(kind=KINDS[api], options=options)}
        super().__init__(folder, backends)
        desk = Desk(name='main', backends=['model'], **settings)
        self._config = Config(workspace=folder / 'ws', backends=backends, desks=[desk])

    @property
    def running(self) -> RunningDesk:
        """The desk itself."""
        return self._supervisor.desks['main']

    async def server_is_up(self) -> None:
        """Returns when the time server is there."""

        def told() -> list[ToolServerUp]:
            self._listen()
            return self.told(ToolServerUp)

        await eventually(told, 'the time server is up')

    async def begin_asking(self, text: str, trigger_id: str) -> None:
        """Sends a trigger."""
        receipt = await self._bus.send(Trigger(text, 'main', id=trigger_id, received_at=self.clock.now()))
        assert receipt.status == 'accepted', receipt

    async def ask(self, text: str) -> str:
        """Sends a trigger, and returns its answer: others may wait on."""
        await self.begin_asking(text, text)
        await self.closed(text)
        return str(self.last['answer'])

    async def closed(self, trigger_id: str) -> None:
        """Returns when a trigger is closed."""
        await eventually(lambda: trigger_id in self.files.outcomes(), f'{trigger_id} is closed')
        self._listen()

    def journal(self) -> list[Line]:
        """Returns the records of the first day's journal."""
        return journal_of(self.files, f'{TODAY}-1')


async def test_what_is_not_allowed(tmp_path: Path, servers: list[McpServer], model: Model, api: str) -> None:
    """A tool that `allow` does not name is not offered; a model that calls it all the same gets an error."""
    async with DeskWithTools(tmp_path, api, model, mcp_servers=servers, allow=['note']) as desk:
        await desk.server_is_up()
        answer = await desk.ask(QUESTION)
    assert set(schemas_in(model.asked[0])) == {'note'}
    assert f"LookupError: there is no tool '{TIME}'; there are: note" in answer
    (failed,) = desk.told(ToolFailed)
    assert failed.tool == TIME
    assert desk.files.outcomes() == {QUESTION: 'answered'}


@pytest.mark.parametrize(
    ('api', 'patterns'), [('anthropic', []), ('openai', []), ('openai', ['time__*'])], indirect=['api']
)
async def test_cut_off_behind_a_call(
    tmp_path: Path, servers: list[McpServer], model: Model, api: str, patterns: list[str]
) -> None:
    """Cut off behind a call, a message is run again where the call was read-only; else it ends as unknown."""
    async with DeskWithTools(tmp_path, api, model, mcp_servers=servers, read_only_tools=patterns) as desk:
        await desk.server_is_up()
        model.hangs = True
        await desk.begin_asking(QUESTION, 'asked')
        await eventually(lambda: model.hanging, 'the tool was called')
        await desk.running.pause('me', 'a look at it', now=True)
        outcomes = desk.files.outcomes()
        model.hangs = False
        await desk.running.resume('me')
        await desk.at_rest()
    calls = [record.get('read_only', False) for record in desk.journal() if record['type'] == 'tool_call']
    assert len(desk.told(ToolCalled)) == len(calls)
    assert said_in(model.asked[-1])[-1][0] == ('result' if patterns else 'user')
    for body in model.asked:
        require_pairs(body)
    if patterns:
        assert outcomes == {}
        assert desk.files.outcomes() == {'asked': 'answered'}
        assert calls == [True, True]
        require_now(desk.last['answer'], datetime.now(UTC) - timedelta(seconds=20))
    else:
        assert outcomes == {'asked': 'unknown'}
        assert calls == [False]
        assert desk.last['trigger_id'].startswith('unknown-')
        assert f'\n- {TIME}({{"timezone":"Asia/Kolkata"}})\n' in desk.last['trigger_text']
        assert desk.last['answer'] == 'I leave it at that.'


# -- the tools that every desk has -----------------------------------------------------------------------------


@pytest.mark.parametrize('api', ['anthropic'], indirect=True)
async def test_a_note(tmp_path: Path, model: Model, api: str) -> None:
    """What the model notes down is in the session's notes, and the review at the day's end is shown it."""
    model.calls['Remember this.'] = ('note', {'text': NOTED})
    async with DeskWithTools(tmp_path, api, model) as desk:
        assert await desk.ask('Remember this.') == f'{GIVEN}The note is kept.'
        lines = (desk.files.folder / 'notes' / f'{TODAY}-1.jsonl').read_text().split('\n')
        assert [note['text'] for note in map(json.loads, lines[:-1]) if note['type'] == 'note'] == [NOTED]
        await desk.next_day()
        asked = len(model.asked)
        await desk.ask('Good morning.')
    (review,) = [body for body in model.asked if 'Review it, and answer' in said_in(body)[-1][2]]
    assert f'noted down in the course of the session:\n\n- {NOTED}\n' in said_in(review)[-1][2]
    assert (desk.files.folder / 'Memory.md').read_text() == f'- {NOTED}\n'
    assert NOTED in text_of(model.asked[asked]['system'])


@pytest.mark.parametrize('api', ['openai'], indirect=True)
async def test_a_wake_up(tmp_path: Path, model: Model, api: str) -> None:
    """When the model asks to be woken, a trigger waits until then, and runs at that minute and not before."""
    model.calls['Look again later.'] = ('wake_me', {'text': 'Look at TCS.', 'at': '14:30'})
    due = MORNING.replace(hour=14, minute=30)
    async with DeskWithTools(tmp_path, api, model) as desk:
        answer = await desk.ask('Look again later.')
        assert answer == f'{GIVEN}You will be woken on Tuesday 2026-03-10 14:30 IST.'
        (waiting,) = [each.trigger for each in desk.running.queue.open_entries()]
        assert (waiting.source, waiting.priority, waiting.not_before) == ('wake_me', 'timer', due)
        desk.clock.advance(due - timedelta(minutes=1))
        await desk.ask('Is it time?')
        desk.clock.advance(due)
        await desk.at_rest()
    woken = desk.last
    assert [each['trigger_text'] for each in desk.files.exchanges()][:2] == ['Look again later.', 'Is it time?']
    assert woken['trigger_id'] == waiting.id
    assert woken['trigger_text'].endswith('to be woken now, and to be told: Look at TCS.')
    assert datetime.fromisoformat(woken['started_at']) == due


@pytest.mark.parametrize('api', ['anthropic'], indirect=True)
async def test_a_skill(tmp_path: Path, model: Model, api: str) -> None:
    """The model is told which skills there are, and gets the text of the one that it asks for."""
    model.calls['How much?'] = ('read_skill', {'name': 'sizing'})
    desk = DeskWithTools(tmp_path, api, model)
    skill = desk.files.folder / 'skills' / 'sizing' / 'SKILL.md'
    skill.parent.mkdir(parents=True)
    skill.write_text('---\nname: sizing\ndescription: How much to buy.\n---\nNever all of it.\n')
    async with desk:
        answer = await desk.ask('How much?')
    system = text_of(model.asked[0]['system'])
    assert 'sizing' in system
    assert 'How much to buy.' in system
    assert 'Never all of it.' not in system
    assert answer == GIVEN + skill.read_text()
