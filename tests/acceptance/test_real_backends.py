"""A desk on the APIs of real models, by their own SDKs, against a server that nobody here wrote and that judges."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from desk_files import Line
from embedded_desk import EmbeddedDesk, be_impatient, dated
from process import Process, Start, UnixConnection, until

from trading_agent.config import Backend
from trading_agent.events import BackendDown, BackendUp, ModelCallFailed, SummaryWritten, TurnFinished

if TYPE_CHECKING:
    from llmock.scenarios import Behavior
    from llmock.testing import LLMockServer

KEY = 'sk-test-4f9d2c7ab81e'
KINDS = {'anthropic': 'anthropic', 'openai': 'openai_compatible'}
"""Whose API, and the kind of backend that speaks it."""

REVIEW = json.dumps(
    {
        'summary': 'The desk was asked about Infosys.',
        'memory': 'Never hold options overnight.\n\n- Infosys is watched.\n',
        'reasons': 'it was asked about twice',
    }
)


@pytest.fixture
def servers() -> Iterator[dict[str, 'LLMockServer']]:
    """A server for each API."""
    for package in ('anthropic', 'openai', 'llmock'):
        pytest.importorskip(package)
    from llmock.simulation import MockResponseSettings
    from llmock.testing import LLMockServer

    with ExitStack() as stack:
        made = {api: LLMockServer(responses=MockResponseSettings(tool_mode='off')) for api in KINDS}
        yield {api: stack.enter_context(server) for api, server in made.items()}


def bodies(server: 'LLMockServer') -> list[dict[str, Any]]:
    """Returns what a server was sent, the oldest first."""
    return [record.body for record in server.state.journal.records(wait=2.0)]


def system_of(body: dict[str, Any]) -> str:
    """Returns what stood above the conversation of a request."""
    if 'system' in body:
        return '\n\n'.join(block['text'] for block in body['system'])
    return '\n\n'.join(message['content'] for message in body['messages'] if message['role'] == 'system')


def said_in(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the conversation of a request: who said what."""
    said = []
    for message in body['messages']:
        content = message['content']
        text = content if isinstance(content, str) else '\n\n'.join(block['text'] for block in content)
        said += [(message['role'], text)] if message['role'] != 'system' else []
    return said


def require_no_mistakes(server: 'LLMockServer', *beside: str) -> None:
    """Sees to it that the server found nothing wrong with its client, but what it cannot know.

    Of the time between two tries nothing can be said: the tests cut it short, and the server may be late itself.
    """
    from llmock.verdict import judge

    verdict = judge(server.state.journal.records(wait=2.0))
    assert not {finding.code for finding in verdict.findings} - {'no_backoff', *beside}, verdict.render()
    assert verdict.calls


# -- the real process ------------------------------------------------------------------------------------------


def config_of(api: str, server: 'LLMockServer') -> str:
    """Returns a configuration with one backend."""
    return f"""
    [backends.model]
    kind = "{KINDS[api]}"
    model = "some-model"
    api_key_env = "SOME_KEY"
    base_url = "{server.base_url(api)}"
    max_tokens = 1000
    [[desks]]
    name = "main"
    backends = ["model"]
    """


def streamed(process: Process, text: str) -> tuple[list[str], Line]:
    """Sends a trigger and waits for its answer; returns the pieces as they came, and the result."""
    connection = UnixConnection(process.workspace / 'control.sock')
    try:
        connection.request('POST', '/v1/desks/main/triggers?wait=true', json.dumps({'text': text}))
        lines = [json.loads(line) for line in connection.getresponse()]
    finally:
        connection.close()
    return [line['text'] for line in lines[1:-1]], lines[-1]['result']


@pytest.mark.parametrize('api', list(KINDS))
def test_a_desk_on_a_real_api(start: Start, servers: dict[str, 'LLMockServer'], api: str) -> None:
    """Answers are streamed and counted; instructions and memory go with each; a day ends and its summary goes on."""
    from llmock.chaos import StreamChaos
    from llmock.scenarios import Reply

    server = servers[api]
    server.state.stream_chaos = StreamChaos(chunk_delay_ms=30).validated()
    process = start(config_of(api, server), environ={'SOME_KEY': KEY}).ready()
    folder = process.files_of().folder
    (folder / 'AGENTS.md').write_text('Answer in one line.\n')
    (folder / 'Memory.md').write_text('Never hold options overnight.\n')

    server.state.scenarios.add(Reply(text='Infosys costs 1500 rupees, two more than yesterday, and stays on the list.'))
    pieces, result = streamed(process, 'What does Infosys cost?')
    assert len(pieces) > 2
    assert ''.join(pieces) == result['answer']
    assert result['outcome'] == 'answered'
    sent = process.cli('send', 'main', 'And TCS?', '--wait', '--json')
    assert sent.returncode == 0, sent.stderr
    assert json.loads(sent.stdout)['backend'] == 'model'
    streamed(process, 'Thank you.')

    exchanges = json.loads(process.cli('show', 'main', '--json').stdout)['exchanges']
    used = [exchange['usage'] for exchange in exchanges]
    assert all(use['input_tokens'] > 0 and use['output_tokens'] > 0 for use in used)
    total = {kind: sum(use[kind] for use in used) for kind in ('input_tokens', 'output_tokens')}
    counted = process.desk()['usage']['session']
    assert {kind: counted[kind] for kind in total} == total
    check_the_conversation(bodies(server), exchanges)

    server.state.scenarios.add(Reply(text=REVIEW), Reply(text='{"actions": []}'))
    rolled = process.cli('rollover', 'main')
    assert rolled.returncode == 0, rolled.stderr
    written = process.wait_for('summary_written')
    assert (written['quality'], written['backend'], written.get('unproved', 0)) == ('full', 'model', 0)
    assert 'The desk was asked about Infosys.' in Path(written['summary_path']).read_text()
    assert (folder / 'Memory.md').read_text() == json.loads(REVIEW)['memory']
    asked = len(bodies(server))
    streamed(process, 'What do you know?')
    last = bodies(server)[-1]
    assert len(bodies(server)) == asked + 1
    assert '- Infosys is watched.' in system_of(last)
    ((_, told),) = said_in(last)
    assert 'The desk was asked about Infosys.' in told
    assert told.endswith('\n\nWhat do you know?')
    assert process.stop() == 0
    require_no_mistakes(server)
    assert [line for line in process.lines if line['level'] in ('warning', 'error', 'critical')] == []


def check_the_conversation(requests: list[dict[str, Any]], exchanges: list[Line]) -> None:
    """Checks that each request goes on where the one before ended, word for word: only so it is read from a cache."""
    assert len(requests) == len(exchanges)
    for number, (request, exchange) in enumerate(zip(requests, exchanges, strict=True)):
        said = said_in(request)
        assert [role for role, _ in said] == [*['user', 'assistant'] * number, 'user']
        assert said[-1][1].endswith(f'\n{exchange["trigger_text"]}')
        assert ' IST, ' in said[-1][1].partition('\n')[0]
        assert system_of(request) == system_of(requests[0])
        for part in ('Answer in one line.', 'Never hold options overnight.', 'the trading desk "main"'):
            assert part in system_of(request)
        if number:
            before = said_in(requests[number - 1])
            assert said[: len(before)] == before
            assert said[len(before)] == ('assistant', exchanges[number - 1]['answer'])


# -- failover --------------------------------------------------------------------------------------------------


@pytest.fixture
def backends(servers: dict[str, 'LLMockServer'], monkeypatch: pytest.MonkeyPatch) -> dict[str, Backend]:
    """A backend on each API."""
    be_impatient(monkeypatch)
    monkeypatch.setenv('SOME_KEY', KEY)
    return {
        api: Backend(
            kind=kind,
            options={'model': f'{api}-model', 'api_key_env': 'SOME_KEY', 'base_url': servers[api].base_url(api)},
        )
        for api, kind in KINDS.items()
    }


def failing(what: str) -> 'Behavior':
    """Returns how a server fails each request from now on."""
    from llmock.scenarios import Fail, StreamFault

    status, _, retry_after = what.partition(' ')
    if status.isdecimal():
        return Fail(int(status), retry_after=float(retry_after) if retry_after else None, times=None)
    return StreamFault('disconnect', after_chunks=int(retry_after), times=None)


@pytest.mark.parametrize('what', ['529', '500', '503', '429 60', '401', 'refused', 'cut 0', 'cut 2'])
@pytest.mark.parametrize('order', [('anthropic', 'openai'), ('openai', 'anthropic')], ids=lambda order: order[0])
async def test_one_stands_in_for_the_other(
    tmp_path: Path, servers: dict[str, 'LLMockServer'], backends: dict[str, Backend], order: tuple[str, str], what: str
) -> None:
    """When one API fails, the other answers and knows what was said; back, the first answers and knows that too."""
    first, second = order
    async with EmbeddedDesk(tmp_path, {name: backends[name] for name in order}) as desk:
        await desk.send(['one', 'two'])
        if what == 'refused':
            servers[first].stop()
        else:
            servers[first].state.scenarios.add(failing(what))
        await desk.send(['three', 'four'])
        assert desk.last['backend_name'] == second
        if what == 'refused':
            servers[first].start()
        servers[first].state.scenarios.clear()
        await desk.cooled_down()
        await desk.send(['five'])
    exchanges = desk.files.exchanges()
    assert [exchange['backend_name'] for exchange in exchanges] == [first, first, second, second, first]
    assert [event.preferred for event in desk.told(TurnFinished)] == [True, True, False, False, True]
    assert [event.backend for event in desk.told(BackendDown)] == [first]
    assert [event.backend for event in desk.told(BackendUp)] == [first]
    for name, number in ((second, 2), (second, 3), (first, 4)):
        before = [text for each in exchanges[:number] for text in (dated(each), each['answer'])]
        asked = [[text for _, text in said_in(body)] for body in bodies(servers[name])]
        assert [*before, dated(exchanges[number])] in asked
    require_no_mistakes(servers[first], 'gave_up')  # it does not see who is asked instead
    require_no_mistakes(servers[second])


@pytest.mark.parametrize('api', list(KINDS))
async def test_a_cut_answer_is_asked_for_again(
    tmp_path: Path, servers: dict[str, 'LLMockServer'], backends: dict[str, Backend], api: str
) -> None:
    """A stream that ends as if it were whole is no answer: the backend is asked again, and its half is not kept."""
    from llmock.scenarios import Fail, Reply, StreamFault

    server = servers[api]
    async with EmbeddedDesk(tmp_path, {api: backends[api]}) as desk:
        for number, after_chunks in enumerate((1, 3)):
            text = f'answer {number}: buy nothing today, hold what there is, and look again at noon'
            server.state.scenarios.add(Reply(text=text, times=3), StreamFault('truncate', after_chunks, times=2))
            await desk.send([f'question {number}'])
            assert desk.last['answer'] == text
        server.state.scenarios.add(Fail(429, retry_after=0.2, times=2))
        await desk.send(['question 3'])
    assert len(desk.files.exchanges()) == 3
    assert desk.told(BackendDown) == []
    require_no_mistakes(server)


@pytest.mark.parametrize('api', list(KINDS))
async def test_a_review_that_is_nonsense(
    tmp_path: Path, servers: dict[str, 'LLMockServer'], backends: dict[str, Backend], api: str
) -> None:
    """A review that is no JSON is asked for once more, and then of the other API; the day ends with a full summary."""
    from llmock.scenarios import Match, Reply

    other = next(name for name in KINDS if name != api)
    async with EmbeddedDesk(tmp_path, {name: backends[name] for name in (api, other)}) as desk:
        await desk.send(['What does Infosys cost?'])
        servers[api].state.scenarios.add(Reply(text='It was a quiet day.', times=None, match=Match(stream=True)))
        servers[other].state.scenarios.add(Reply(text=REVIEW), Reply(text='{"actions": []}'))
        await desk.next_day()
    assert 'The desk was asked about Infosys.' in desk.files.summary('2026-03-10')
    assert 'degraded' not in desk.files.summary('2026-03-10')
    for server in servers.values():
        require_no_mistakes(server)


@pytest.mark.parametrize('api', list(KINDS))
async def test_a_long_review_is_waited_for(
    tmp_path: Path, servers: dict[str, 'LLMockServer'], backends: dict[str, Backend], api: str
) -> None:
    """A review that takes far longer than the backend may be silent is waited for, as long as more of it comes."""
    from llmock.chaos import StreamChaos
    from llmock.scenarios import Reply

    server = servers[api]
    limits = {'first_token_timeout': '5s', 'between_tokens_timeout': '2s'}
    async with EmbeddedDesk(tmp_path, {api: Backend(kind=KINDS[api], options=backends[api].options | limits)}) as desk:
        await desk.send(['What does Infosys cost?'])
        server.state.stream_chaos = StreamChaos(chunk_delay_ms=200).validated()
        server.state.scenarios.add(Reply(text=REVIEW), Reply(text='{"actions": []}'))
        began = anyio.current_time()
        await desk.next_day()
        assert anyio.current_time() - began > 3.0
    assert [event.quality for event in desk.told(SummaryWritten)] == ['full']
    assert desk.told(ModelCallFailed) == []


def test_a_key_that_is_missing(start: Start, servers: dict[str, 'LLMockServer']) -> None:
    """Without the variable that holds the key the daemon does not start, and names it."""
    process = start(config_of('openai', servers['openai']))
    assert process.wait() == 78
    told = until(process.tail, 'it says why')
    assert 'SOME_KEY' in told
    assert bodies(servers['openai']) == []
