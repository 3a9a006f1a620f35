"""A desk on llama.cpp's own server, by both of its APIs: a day of announcements, its rollover, a full context."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from embedded_desk import TODAY, TOMORROW, EmbeddedDesk, be_impatient

from trading_agent.config import Backend
from trading_agent.conversation.records import CallFailed, Digested, records
from trading_agent.events import BackendDown, SummaryWritten, TriggerClosed, TurnFinished

EVERYTHING = bool(os.environ.get('TRADING_AGENT_TEST_ALL'))
DATA = Path(__file__).parents[1] / 'data' / 'announcements-first-day.txt'
REAL = Path(__file__).parents[2].parent / 'shared' / 'data' / 'nse-announcements' / '2025-12-16.txt'
ANNOUNCEMENTS = 50
PATIENCE = 90.0  # seconds
KINDS = {'anthropic': 'anthropic', 'openai': 'openai_compatible'}
"""Whose API, and the kind of backend that speaks it."""

Serve = Callable[[int], str]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server with a context of so many tokens, and returns its URL."""
    missing = [name for name in ('xllamacpp', 'gguf', 'anthropic', 'openai') if importlib.util.find_spec(name) is None]
    if not EVERYTHING:
        pytest.skip('a local model is tried only with TRADING_AGENT_TEST_ALL=1')
    if missing:
        pytest.fail(f'not installed: {", ".join(missing)}: no local model was tried')
    be_impatient(monkeypatch)
    with ExitStack() as stack:

        def started(context: int) -> str:
            command = [sys.executable, str(Path(__file__).with_name('local_model.py')), str(tmp_path), str(context)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            return process.stdout.readline().strip()

        yield started


def backend(url: str, api: str, context_tokens: int) -> Backend:
    """Returns a backend on one of the server's APIs."""
    options = {
        'model': 'random',
        'base_url': url + ('/v1' if api == 'openai' else ''),
        'context_tokens': context_tokens,
        'max_tokens': 600,
    }
    return Backend(kind=KINDS[api], options=options)


def announcements() -> list[str]:
    """Returns a day's announcements."""
    path = REAL if REAL.exists() else DATA
    lines = [line.strip() for line in path.read_bytes().decode().split('\n') if line.strip()]
    return [f'{lines[number % len(lines)]} ({number})' for number in range(ANNOUNCEMENTS)]


def check_the_day(desk: EmbeddedDesk) -> None:
    """Checks that each announcement was answered, in its order, and that the day was summed up."""
    exchanges = desk.files.session(f'{TODAY}-1')
    assert [exchange['trigger_text'] for exchange in exchanges] == announcements()
    assert all(exchange['answer'].strip() for exchange in exchanges)
    assert {event.outcome for event in desk.told(TriggerClosed)} == {'answered'}
    assert desk.files.summaries() == [TODAY]


@pytest.mark.parametrize('api', list(KINDS))
async def test_a_day_on_a_local_model(tmp_path: Path, serve: Serve, api: str) -> None:
    """Fifty announcements are answered, most of each request comes from the server's cache, and the day rolls over."""
    url = serve(65_536)
    # One of the two APIs has no schema for an answer, and a random model no sense: the other reviews the day.
    order = [api, *(other for other in KINDS if other != api)]
    async with EmbeddedDesk(tmp_path, {name: backend(url, name, 60_000) for name in order}, PATIENCE) as desk:
        await desk.send(announcements())
        await desk.next_day()
        await desk.send(['The market opens.'])
    check_the_day(desk)
    assert {exchange['backend_name'] for exchange in desk.files.exchanges()} == {api}
    (written,) = desk.told(SummaryWritten)
    assert (written.quality, written.backend) == ('full', 'openai')
    (first,) = desk.files.session(f'{TOMORROW}-1')
    assert first['trigger_text'].endswith('\n\nThe market opens.')
    used = [exchange['usage'] for exchange in desk.files.session(f'{TODAY}-1')]
    cached, new = (sum(use.get(kind, 0) for use in used[1:]) for kind in ('cache_read_tokens', 'input_tokens'))
    assert cached > 10 * new


@pytest.mark.parametrize('api', list(KINDS))
async def test_a_context_that_is_full(tmp_path: Path, serve: Serve, api: str) -> None:
    """A model that takes less than was estimated makes the desk fold its session time and again; nothing is lost."""
    url = serve(8192)
    async with EmbeddedDesk(tmp_path, {api: backend(url, api, 8192)}, PATIENCE) as desk:
        await desk.send(announcements())
        await desk.next_day()
    check_the_day(desk)
    lines = list(records(desk.files.folder / 'journal' / f'{TODAY}-1.jsonl'))
    digests = [line.exchanges for line in lines if isinstance(line, Digested) and not line.turn_id.startswith('review')]
    assert len(digests) >= 2
    assert digests == sorted(digests)
    assert [line for line in lines if isinstance(line, CallFailed) and line.error_type == 'ContextTooSmall'] == []
    assert len(desk.told(TurnFinished)) == ANNOUNCEMENTS


async def test_a_message_that_is_too_long_for_it(tmp_path: Path, serve: Serve) -> None:
    """What a small model cannot take even alone goes to the next backend; after that the small one is asked again."""
    url = serve(8192)
    larger = Backend(kind='drill_backends:counting', options={'asked': []})
    async with EmbeddedDesk(tmp_path, {'openai': backend(url, 'openai', 8192), 'larger': larger}) as desk:
        await desk.send(['What is new?'])
        await desk.send(['Read this: ' + 'a very long story ' * 1000])
        await desk.send(['And now?'])
    assert [each['backend_name'] for each in desk.files.exchanges()] == ['openai', 'larger', 'openai']
    assert desk.told(BackendDown) == []
