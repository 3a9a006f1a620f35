"""A day on which every backend fails in every way: nothing is lost or answered twice, and nobody loses the thread."""

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from embedded_desk import TODAY, TOMORROW, EmbeddedDesk, after, be_impatient, dated
from model_apis import Asked, Fault, ModelApis, Moment, model_apis
from outage_backends import FAULTS as RESIDENT_FAULTS
from outage_backends import Told

from trading_agent.config import Backend
from trading_agent.events import (
    BackendDown,
    BackendUp,
    ModelCallFailed,
    SummaryWritten,
    TriggerClosed,
    TurnFinished,
)

SEED = 20260310
ANNOUNCEMENTS = 300 if os.environ.get('TRADING_AGENT_TEST_ALL') else 60
DATA = Path(__file__).parents[1] / 'data' / 'announcements-first-day.txt'
REAL = Path(__file__).parents[2].parent / 'shared' / 'data' / 'nse-announcements' / '2025-12-16.txt'
REVIEW = json.dumps({'summary': 'The day of outages is over.', 'memory': '- outages pass', 'reasons': 'they did'})
NO_SKILLS = '{"actions": []}'
NAMES = ('claude', 'gpt', 'third')

_MOMENTS: tuple[Moment, ...] = ('first', 'middle', 'last')
API_FAULTS = [
    *(Fault('status', status=status) for status in (401, 402, 403, 404, 408, 500, 502, 503, 529)),
    Fault('status', status=429, retry_after=0.01),
    Fault('status', status=429, retry_after=30),
    Fault('status', status=400, message='prompt is too long: 210000 tokens > 200000 maximum'),
    Fault('garbage'),
    Fault('page'),
    *(
        Fault(kind, moment, status=529)
        for kind in ('hang_up', 'reset', 'end', 'half', 'error', 'stall')
        for moment in _MOMENTS
    ),
]
REFUSED = 'refused'
"""No connection is taken."""

Plan = dict[tuple[str, int | str], list[Any]]
"""What becomes of requests, by backend and number of the announcement, or `review`: one after the other."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)
    monkeypatch.setenv('SOME_KEY', 'sk-of-nobody-at-all')


def texts(count: int) -> list[str]:
    """Returns announcements, each with its number in front."""
    path = REAL if REAL.exists() else DATA
    lines = [line for line in path.read_bytes().decode().split('\n') if line.strip()]
    return [f'#{number}# {lines[number % len(lines)].strip()}' for number in range(count)]


def id_of(text: str) -> str:
    """Returns the id under which an announcement is sent."""
    return f'a{numbers_in(text)[0]}'


def numbers_in(text: str) -> list[int]:
    """Returns the numbers of the announcements in a text."""
    return [int(number) for number in re.findall(r'#(\d+)#', text)]


class Backends:
    """The three backends of a day, and what fails when.

    Attributes:
        plan: What becomes of requests.
        asked: The request that an answer was given to, by the answer.
        sessions: What the third one's sessions hold.
        failed: How often each fault came about.
    """

    def __init__(self, claude: ModelApis, gpt: ModelApis) -> None:
        self.apis = {'claude': claude, 'gpt': gpt}
        self.plan: Plan = {}
        self.asked: dict[str, Asked] = {}
        self.sessions: dict[str, list[Told]] = {}
        self.failed: Counter[object] = Counter()
        self._answers = 0
        for name, api in self.apis.items():
            api.answering = lambda asked, name=name: self._answer_of(name, asked)  # type: ignore[misc]

    def _fault(self, backend: str, about: int | str) -> Any:  # noqa: ANN401 - a fault of either kind
        planned = self.plan.get((backend, about))
        fault = planned.pop(0) if planned else None
        if fault is not None:
            self.failed[backend, fault] += 1
        return fault

    def _answer_of(self, backend: str, asked: Asked) -> str | Fault:
        if asked.said[-1].startswith('The earlier part of this conversation no longer fits'):
            return f'So far: {" ".join(f"#{number}#" for number in sorted(set(numbers_in(asked.said[-1]))))}'
        about = 'review' if asked.wants_json else numbers_in(asked.said[-1])[0]
        fault: Fault | None = self._fault(backend, about)
        if fault is not None:
            return fault
        if about == 'review':
            return NO_SKILLS if '"actions"' in asked.system else REVIEW
        answer = self._answer(backend)
        self.asked[answer] = asked
        return answer

    def _answer(self, backend: str) -> str:
        self._answers += 1
        return f'{backend} says {self._answers}'

    def options(self) -> dict[str, Backend]:
        """Returns the backends as configured: the second one has a small context, the third keeps its own session."""
        waits = {'first_token_timeout': '300ms', 'between_tokens_timeout': '300ms', 'api_key_env': 'SOME_KEY'}
        kinds = (('claude', 'anthropic', 128_000), ('gpt', 'openai_compatible', 6000))
        apis = {
            name: Backend(
                kind=kind,
                options={
                    'model': 'some-model',
                    'base_url': self.apis[name].url('openai' if name == 'gpt' else 'anthropic'),
                    'context_tokens': tokens,
                    **waits,
                },
            )
            for name, kind, tokens in kinds
        }
        third = {
            'sessions': self.sessions,
            'fault': lambda text: self._fault('third', numbers_in(text)[0]),
            'answer': lambda _: self._answer('third'),
        }
        return {**apis, 'third': Backend(kind='outage_backends:resident', options=third)}


@pytest.fixture
def backends() -> Iterator[Backends]:
    """The backends of a day."""
    with ExitStack() as stack:
        yield Backends(*(stack.enter_context(model_apis(lambda _: 'no')) for _ in range(2)))


def planned(rng: random.Random, count: int) -> list[tuple[list[int], Plan]]:
    """Returns a day as outages, one after the other: whose announcements they are, and who fails how at each."""
    deck = {name: [*API_FAULTS, REFUSED] for name in NAMES[:2]} | {'third': list(RESIDENT_FAULTS)}
    dealt: dict[str, list[Any]] = {name: [] for name in NAMES}
    down = [('claude',), ('claude', 'gpt'), ('claude', 'gpt', 'third')]

    def deal(name: str) -> Any:  # noqa: ANN401 - a fault of either kind
        dealt[name] = dealt[name] or rng.sample(deck[name], len(deck[name]))
        return dealt[name].pop()

    outages: list[tuple[list[int], Plan]] = []
    first = 0
    while first < count:
        numbers = list(range(first, min(count, first + rng.randint(1, 4))))
        first += len(numbers)
        who = down[len(outages) % 3]
        faults: Plan = {}
        for number in numbers:
            for name in who:
                faults[name, number] = [deal(name) for _ in range(rng.randint(1, 4))]
        outages.append((numbers, faults))
    return outages


async def test_a_day_of_outages(tmp_path: Path, backends: Backends) -> None:
    """Each announcement is answered once, in order, by one who knew all before it; the preferred one comes back."""
    told = texts(ANNOUNCEMENTS)
    day = EmbeddedDesk(tmp_path, backends.options())
    outages = planned(random.Random(SEED), ANNOUNCEMENTS * 2 // 3)  # noqa: S311 - no secret
    quiet = iter(range(ANNOUNCEMENTS * 2 // 3, ANNOUNCEMENTS))
    order: list[int] = []
    await day.begin()
    for turn, (numbers, faults) in enumerate(outages):
        await outage(day, backends, [told[number] for number in numbers], faults)
        order += numbers
        await day.cooled_down()
        calm = next(quiet, None)
        if calm is not None:
            await day.send([told[calm]], [id_of(told[calm])])
            order.append(calm)
            assert day.last['backend_name'] == 'claude', f'after outage {turn}'
        if turn == len(outages) // 2:
            await day.begin()
    rest = [told[number] for number in quiet]
    await day.send(rest, [id_of(text) for text in rest])
    order += [numbers_in(text)[0] for text in rest]
    check_the_log(day, backends, told, order)
    check_what_was_sent(day, backends)
    await roll_over(day, backends)
    await day.end()


async def outage(day: EmbeddedDesk, backends: Backends, numbered: list[str], faults: Plan) -> None:
    """Lets backends fail while announcements come."""
    refusing = sorted({name for (name, _), them in faults.items() if REFUSED in them})
    backends.plan = {key: [each for each in them if each != REFUSED] for key, them in faults.items()}
    for name in refusing:
        backends.apis[name].refuse()
        backends.failed[name, REFUSED] += 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(after, 0.15, *(backends.apis[name].listen for name in refusing))
        await day.send(numbered, [id_of(text) for text in numbered])


def check_the_log(day: EmbeddedDesk, backends: Backends, told: list[str], order: list[int]) -> None:
    """Checks that each announcement became one exchange, in the order in which they came, whatever failed."""
    exchanges = day.files.session(f'{TODAY}-1')
    assert [exchange['trigger_id'] for exchange in exchanges] == [f'a{number}' for number in order]
    assert [exchange['trigger_text'] for exchange in exchanges] == [told[number] for number in order]
    assert len({exchange['answer'] for exchange in exchanges}) == len(order)
    finished = day.told(TurnFinished)
    assert [event.trigger_id for event in finished] == [f'a{number}' for number in order]
    assert all(event.preferred == (event.backend == 'claude') for event in finished)
    assert {event.outcome for event in day.told(TriggerClosed)} == {'answered'}
    by_backend = Counter(exchange['backend_name'] for exchange in exchanges)
    assert min(by_backend[name] for name in NAMES) >= 3, by_backend
    assert {event.backend for event in day.told(BackendDown)} == set(NAMES)
    assert {event.backend for event in day.told(BackendUp)} == set(NAMES)
    assert len(day.told(ModelCallFailed)) >= sum(backends.failed.values()) // 2
    if len(order) == 300:
        never = {(name, fault) for name in NAMES[:2] for fault in API_FAULTS} - set(backends.failed)
        assert never == set()


def check_what_was_sent(day: EmbeddedDesk, backends: Backends) -> None:
    """Checks that who answered knew all that had been said before: as it was, or from a digest of just the rest."""
    exchanges = day.files.session(f'{TODAY}-1')
    folded = set()
    for place, exchange in enumerate(exchanges):
        before = exchanges[:place]
        if exchange['backend_name'] == 'third':
            held = backends.sessions[f'after-{exchange["answer"]}']
            pairs = [(each['trigger_text'], each['answer']) for each in exchanges[: place + 1]]
            assert held == pairs, f'exchange {place}'
            continue
        asked = backends.asked[exchange['answer']]
        left_out = place - (len(asked.said) - 1) // 2
        shown = [text for each in before[left_out:] for text in (dated(each), each['answer'])]
        assert asked.said == [*shown, dated(exchange)], f'exchange {place}'
        digest = asked.system.partition('# Earlier in this session, in short\n\n')[2]
        assert sorted(numbers_in(digest)) == sorted(
            numbers_in(str([each['trigger_text'] for each in before[:left_out]]))
        )
        folded |= {exchange['backend_name']} if left_out else set()
    assert 'gpt' in folded


async def roll_over(day: EmbeddedDesk, backends: Backends) -> None:
    """Lets midnight come while the preferred backend fails, and the next day begin."""
    backends.plan = {('claude', 'review'): [Fault('status', status=529)] * 100}
    await day.next_day()
    backends.plan = {}
    await day.cooled_down()
    await day.send(['#1000# The market opens.'])
    (written,) = day.told(SummaryWritten)
    assert (written.quality, written.backend) == ('full', 'gpt')
    assert 'The day of outages is over.' in day.files.summary(TODAY)
    (first,) = day.files.session(f'{TOMORROW}-1')
    assert first['backend_name'] == 'claude'
    assert 'The day of outages is over.' in first['trigger_text']
    assert '- outages pass' in backends.asked[first['answer']].system
    assert set(day.files.outcomes().values()) == {'answered'}


async def test_too_long_for_everyone(tmp_path: Path, backends: Backends) -> None:
    """A message that no backend can take is closed as failed, with all their reasons, and does not hold up the next."""
    two = {name: backend for name, backend in backends.options().items() if name != 'third'}
    day = EmbeddedDesk(tmp_path, two)
    too_long = Fault('status', status=400, message='prompt is too long: 210000 tokens > 200000 maximum')
    await day.begin()
    await day.send(['#0# news'], ['a0'])
    backends.plan = {(name, 1): [too_long] * 5 for name in ('claude', 'gpt')}
    await day.send(['#1# a very long message', '#2# news'], ['a1', 'a2'])
    await day.end()
    assert day.files.answered() == ['a0', 'a2']
    (failed,) = [event for event in day.told(TriggerClosed) if event.outcome == 'failed']
    assert failed.trigger_id == 'a1'
    assert 'claude' in failed.error
    assert 'gpt' in failed.error
    assert day.told(BackendDown) == []
