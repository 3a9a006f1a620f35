"""A configuration that is changed while the desks are at work: what counts, when, and whom it leaves alone."""

import copy
import os
import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from daemon_fakes import MORNING, Gate, answered, component, config_for, daemon_of, send, told, until

from trading_agent import config as config_module
from trading_agent.clock import ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon import configuration as configuration_module
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.operations import Operations
from trading_agent.daemon.plan import make_plan
from trading_agent.daemon.status import DeskStatus
from trading_agent.errors import ConfigurationError
from trading_agent.event_bus import EventBus
from trading_agent.events import (
    ComponentFailed,
    ConfigRejected,
    ConfigReloaded,
    DeskParked,
    DeskRestarted,
    DeskStarted,
    Event,
    TriggerClosed,
    TurnFinished,
    TurnInterrupted,
    TurnStarted,
    WriteFailed,
)
from trading_agent.logs import Log
from trading_agent.routing.turn_runner import Turn, TurnAnswered, TurnEvent
from trading_agent.systemd import Notifier
from trading_agent.trigger import Trigger
from trading_agent.units import Duration, Size

RUNNING: dict[str, list[dict[str, Any]]] = {}
"""The options of each running component, by the name that its options give it."""


async def counted(bus: EventBus, options: dict[str, Any]) -> None:
    """A component that says that it runs."""
    RUNNING.setdefault(options['key'], []).append(options)
    try:
        await anyio.sleep_forever()
    finally:
        RUNNING[options['key']].remove(options)


class Slow:
    """A backend that takes its time."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._seconds = options.pop('milliseconds') / 1000
        if options:
            raise TypeError(f'there is no option {sorted(options)}')

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        await anyio.sleep(self._seconds)
        yield TurnAnswered(f'{self._name} has noted it')


def slow(name: str, options: dict[str, Any]) -> Slow:
    """Makes a backend of this kind."""
    return Slow(name, options)


HERE = 'test_configuration_life:'

IMPORTED = threading.Event()
"""Lets the import of a package end that takes long."""

# -- two hundred edits -------------------------------------------------------------------------------------------

EDITS = 200
COMPARED_EVERY = 20


@dataclass
class Draft:
    """What the file is to say, as the one who edits it has it in mind."""

    keys: dict[str, Any] = field(default_factory=dict)
    backends: dict[str, dict[str, Any]] = field(default_factory=dict)
    desks: list[dict[str, Any]] = field(default_factory=list)
    components: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """Returns it as TOML."""
        parts = [_table(self.keys)]
        parts += [f'[backends.{name}]\n{_table(table)}' for name, table in self.backends.items()]
        parts += [f'[[desks]]\n{_table(table)}' for table in self.desks]
        parts += [f'[[components]]\n{_table(table)}' for table in self.components]
        return '\n'.join(parts)


def _table(table: dict[str, Any]) -> str:
    return ''.join(f'{key} = {_value(value)}\n' for key, value in table.items())


def _value(value: Any) -> str:  # noqa: ANN401 - whatever TOML knows
    if isinstance(value, dict):
        return '{ ' + ', '.join(f'{key} = {_value(inner)}' for key, inner in value.items()) + ' }'
    return msgspec.json.encode(value).decode()


class Editor:
    """Somebody who edits a configuration file at random, the same way for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - to be repeated
        self.number = 0
        self.draft = Draft(
            backends={'slow': {'kind': f'{HERE}slow', 'milliseconds': 30}},
            desks=[{'name': 'd0', 'backends': ['slow']}, {'name': 'd1', 'backends': ['slow', 'slow2']}],
            components=[{'name': 'c0', 'entry': f'{HERE}counted', 'options': {'key': 'c0'}}],
        )
        self.draft.backends['slow2'] = {'kind': f'{HERE}slow', 'milliseconds': 20}

    def next(self) -> tuple[str, bool]:
        """Returns the next text of the file, and whether it is valid."""
        self.number += 1
        draft = copy.deepcopy(self.draft)
        for _ in range(self.random.choice([1, 1, 2, 3])):
            self.random.choice(VALID)(self.random, draft)
        text = draft.text()
        if self.random.random() < 0.4:
            return self.random.choice(INVALID)(self.random, draft, text), False
        self.draft = draft
        return text, True


def _add_desk(rng: random.Random, draft: Draft) -> None:
    free = sorted({f'd{n}' for n in range(7)} - {desk['name'] for desk in draft.desks})
    if free:
        backends = rng.choice([['slow'], ['slow2'], ['slow2', 'slow']])
        draft.desks.insert(rng.randrange(len(draft.desks) + 1), {'name': rng.choice(free), 'backends': backends})


def _remove_desk(rng: random.Random, draft: Draft) -> None:
    if len(draft.desks) > 1:
        draft.desks.pop(rng.randrange(len(draft.desks)))


def _rename_desk(rng: random.Random, draft: Draft) -> None:
    free = sorted({f'd{n}' for n in range(7)} - {desk['name'] for desk in draft.desks})
    rng.choice(draft.desks)['name'] = rng.choice([*free, draft.desks[0]['name']]) if len(draft.desks) == 1 else 'd0'
    if len({desk['name'] for desk in draft.desks}) < len(draft.desks):  # the name was taken: give it another
        for number, desk in enumerate(draft.desks):
            desk['name'] = f'd{number}'


DESK_VALUES: dict[str, list[Any]] = {
    'rollover_at': ['00:00', '05:30', '09:00'],
    'queue_limit': [50, 1000],
    'turn_timeout': ['10s', '5m'],
    'summary_timeout': ['20s', '3m'],
    'summary_budget': [500, 6000],
    'memory_budget': [500, 12000],
    'carry_summaries': [0, 3],
    'backends': [['slow'], ['slow2'], ['slow', 'slow2'], ['slow2', 'slow']],
}
KEY_VALUES: dict[str, list[Any]] = {
    'log_level': ['debug', 'info', 'warning', 'error'],
    'log_content': [True, False],
    'max_concurrent_turns': [2, 4, 8],
    'drain': ['5s', '30s'],
    'heartbeat_every': ['10s', '60s'],
    'max_trigger_size': ['1KiB', '64KiB', '1MiB'],
    'disk_low': ['1MiB', '2MiB'],
    'disk_low_percent': [0.1, 0.2],
}


def _change_desk(rng: random.Random, draft: Draft) -> None:
    key = rng.choice(list(DESK_VALUES))
    rng.choice(draft.desks)[key] = rng.choice(DESK_VALUES[key])


def _reorder_desks(rng: random.Random, draft: Draft) -> None:
    rng.shuffle(draft.desks)


def _change_backend(rng: random.Random, draft: Draft) -> None:
    draft.backends[rng.choice(['slow', 'slow2'])]['milliseconds'] = rng.choice([10, 20, 30, 50])


def _change_unused_backend(rng: random.Random, draft: Draft) -> None:
    if draft.backends.pop('unused', None) is None:
        draft.backends['unused'] = {'kind': 'offline', 'delay': '1s'}


def _change_components(rng: random.Random, draft: Draft) -> None:
    name = f'c{rng.randrange(3)}'
    there = [table for table in draft.components if table['name'] == name]
    if there and rng.random() < 0.4:
        draft.components.remove(there[0])
    elif there:
        there[0]['options'] = {'key': name, 'number': rng.randrange(3)}
    else:
        draft.components.append({'name': name, 'entry': f'{HERE}counted', 'options': {'key': name}})


def _change_keys(rng: random.Random, draft: Draft) -> None:
    key = rng.choice(list(KEY_VALUES))
    draft.keys[key] = rng.choice(KEY_VALUES[key])


def _nothing(rng: random.Random, draft: Draft) -> None:
    """Saves the file as it was."""


VALID: list[Callable[[random.Random, Draft], None]] = [
    _add_desk,
    _add_desk,
    _remove_desk,
    _rename_desk,
    _change_desk,
    _change_desk,
    _reorder_desks,
    _change_backend,
    _change_unused_backend,
    _change_components,
    _change_components,
    _change_keys,
    _nothing,
]


def _spoilt(change: Callable[[Draft], object]) -> Callable[[random.Random, Draft, str], str]:
    def spoil(_: random.Random, draft: Draft, __: str) -> str:
        draft = copy.deepcopy(draft)
        change(draft)
        return draft.text()

    return spoil


def _with_backend(draft: Draft, **table: Any) -> None:  # noqa: ANN401 - as in the configuration
    draft.backends['new'] = table
    draft.desks.append({'name': 'new', 'backends': ['new']})


def _torn(rng: random.Random, _: Draft, text: str) -> str:
    return text[: rng.randrange(len(text) // 2, len(text) - 1)] + '\n[[desks'


INVALID: list[Callable[[random.Random, Draft, str], str]] = [
    _torn,
    lambda _, __, text: 'log_levle = "info"\n' + text,
    lambda _, __, text: 'queue_limit = 5\n' + text,
    lambda _, __, text: text + '\n[backends.other]\nmilliseconds = 1\n',
    lambda _, __, text: text + '\n[backends.other]\nkind = "ofline"\n',
    lambda _, __, text: text + '\n[nonsense]\n',
    lambda _, __, text: 'control_group = "daemon"\n' + text,
    _spoilt(lambda draft: draft.desks.append(dict(draft.desks[0]))),
    _spoilt(lambda draft: draft.desks.append({'name': 'new', 'backends': ['there_is_none']})),
    _spoilt(lambda draft: draft.desks.append({'name': 'New', 'backends': ['slow']})),
    _spoilt(lambda draft: draft.desks.append({'name': 'new', 'backends': []})),
    _spoilt(lambda draft: draft.desks[0].update(queue_limit=0)),
    _spoilt(lambda draft: draft.desks[-1].update(queue_limits=10)),
    _spoilt(lambda draft: draft.desks[-1].update(rollover_at='12:00')),
    _spoilt(lambda draft: draft.desks[-1].update(turn_timeout='soon')),
    _spoilt(lambda draft: draft.keys.update(max_concurrent_turns=257)),
    _spoilt(lambda draft: draft.keys.update(drain='2 hours')),
    _spoilt(lambda draft: draft.keys.update(log_level='loud')),
    _spoilt(lambda draft: draft.keys.update(max_trigger_size='2MiB')),
    _spoilt(lambda draft: draft.components.append({'name': 'new', 'entry': 'there.is:none'})),
    _spoilt(lambda draft: draft.components.append({'name': 'new', 'entry': f'{HERE}EDITS'})),
    _spoilt(lambda draft: draft.components.append({'name': 'new', 'entry': 'not a name'})),
    _spoilt(lambda draft: draft.components.extend([{'name': 'new', 'entry': f'{HERE}counted'}] * 2)),
    _spoilt(lambda draft: _with_backend(draft, kind=f'{HERE}there_is_none')),
    _spoilt(lambda draft: _with_backend(draft, kind=f'{HERE}slow', milliseconds=1, colour='red')),
    _spoilt(lambda draft: _with_backend(draft, kind=f'{HERE}slow', milliseconds=1, key_env='THERE_IS_NO_SUCH_KEY')),
    _spoilt(lambda draft: draft.backends.update(offline={'kind': 'offline', 'dely': '1s'})),
]


class Life:
    """A daemon whose file is edited while its desks are at work, and what must be true of it all the while."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.workspace = folder / 'ws'
        self.file = folder / 'trading-agent.toml'
        self.editor = Editor(seed)
        self.file.write_text(self.editor.draft.text())
        self.clock = ManualClock(MORNING)
        self.daemon = daemon_of(self.load(), self.clock, read_config=self.load)
        self.put_in_force: list[Config] = []
        self.daemon.on_config = self.put_in_force.append
        self.sent: dict[str, str] = {}
        self.untouched_turns: set[str] = set()

    def load(self) -> Config:
        return config_module.load(self.file, self.workspace, {})

    @property
    def desks(self) -> dict[str, Any]:
        return {name: desk for name, desk in self.daemon.supervisor.desks.items() if not desk.retiring}

    async def load_desks(self) -> None:
        """Gives some desks something to do."""
        rng = self.editor.random
        for name in list(self.desks):
            for _ in range(rng.choice([0, 0, 1, 2])):
                trigger_id = f't{len(self.sent)}'
                receipt = await self.daemon.bus.send(Trigger('hello', name, id=trigger_id))
                assert receipt.status == 'accepted', receipt
                self.sent[trigger_id] = name

    def shape(self, daemon: Daemon) -> list[Any]:
        """Returns what a configuration decides in a daemon that is at rest, and what it shows of that."""
        found: list[Any] = [daemon._slots.total_tokens, sorted(daemon.configuration.plan.components)]
        for name, desk in daemon.supervisor.desks.items():
            found.append((name, desk.settings, desk.queue.limit, desk.queue.max_size))
            never = {'last_turn_at': None, 'last_backend': None, 'last_preferred': None}
            found.append(msgspec.structs.replace(desk.status(), **never))
        found += daemon.configuration.unconfigured
        return found

    async def one_edit(self) -> None:
        text, valid = self.editor.next()
        before = self.daemon.configuration.plan
        await self.load_desks()
        for _ in range(self.editor.random.randrange(4)):
            await anyio.sleep(0.01)
        running = {name: desk.turn for name, desk in self.desks.items() if desk.turn}
        calm = {name: desk for name, desk in self.desks.items() if not desk._loop._ending}
        self.file.write_text(text)
        with self.daemon.bus.subscribe(ConfigReloaded, ConfigRejected) as events:
            if not valid:
                await self.refused(before, events)
                self.untouched_turns |= {f'{turn.trigger_id}:{turn.attempt}' for turn in running.values()}
                return
            await self.daemon.configuration.reload()
            (reloaded,) = told(events, Event)
            assert isinstance(reloaded, ConfigReloaded)
        plan = self.daemon.configuration.plan
        fresh = make_plan(self.load())
        assert plan.config == fresh.config == self.put_in_force[-1]
        assert list(self.desks) == list(fresh.desks)
        assert {name: (desk.settings, desk.backends) for name, desk in plan.desks.items()} == {
            name: (desk.settings, desk.backends) for name, desk in fresh.desks.items()
        }
        assert plan.components == fresh.components
        for name, turn in running.items():
            if name in plan.desks and plan.desks[name] is before.desks[name]:
                assert turn is not None
                self.untouched_turns.add(f'{turn.trigger_id}:{turn.attempt}')
        same = [name for name in plan.desks if name in before.desks and plan.desks[name] is before.desks[name]]
        assert not [name for name in same if name in calm and calm[name]._loop._ending]
        told_of = {*reloaded.added, *reloaded.changed, *reloaded.removed}
        assert not told_of & {f'desk {name}' for name in same}
        assert told_of >= {f'desk {name}' for name in before.desks.keys() ^ plan.desks.keys()}

    async def refused(self, before: Any, events: Any) -> None:  # noqa: ANN401 - a plan and a subscription
        calls, receivers = len(self.put_in_force), dict(self.daemon.bus._receivers)
        components, desks = copy.deepcopy(RUNNING), dict(self.desks)
        with pytest.raises(ConfigurationError) as caught:
            await self.daemon.configuration.reload()
        (rejected,) = told(events, Event)
        assert isinstance(rejected, ConfigRejected)
        assert rejected.error == str(caught.value)
        assert rejected.hint
        assert self.daemon.configuration.plan is before
        assert len(self.put_in_force) == calls
        assert self.daemon.bus._receivers == receivers
        assert components == RUNNING
        assert dict(self.desks) == desks

    async def settle(self) -> None:
        """Lets everything end that has begun."""
        desks = self.daemon.supervisor.desks
        await until(
            lambda: all(not d.queue.depth and not d.retiring and not d._following for d in desks.values()), 'rest'
        )
        await self.daemon.supervisor.settled()
        await self.daemon.configuration.find_unconfigured()

    async def compare(self) -> None:
        """A daemon that is started now, with the same file on the same files, is the same."""
        self.file.write_text(self.editor.draft.text())  # the last that was taken
        await self.settle()
        copied = self.folder / 'copy'
        shutil.copytree(self.workspace, copied, ignore=shutil.ignore_patterns('*.lock'))
        running = copy.deepcopy({key: options for key, options in RUNNING.items() if options})
        RUNNING.clear()
        fresh = daemon_of(config_module.load(self.file, copied, {}), self.clock)
        async with fresh:
            await fresh.supervisor.settled()
            assert self.shape(fresh) == self.shape(self.daemon)
            await until(lambda: {k: o for k, o in RUNNING.items() if o} == running, 'the same components run')
        RUNNING.clear()
        RUNNING.update(running)
        shutil.rmtree(copied)


async def test_two_hundred_edits(tmp_path: Path) -> None:
    """No edit disturbs a turn that runs, a bad one changes nothing, and a good one makes what a start makes."""
    RUNNING.clear()
    life = Life(tmp_path, seed=20260310)
    bad = (TurnInterrupted, DeskRestarted, DeskParked, WriteFailed, ComponentFailed)
    with life.daemon.bus.subscribe(TurnStarted, TurnFinished, TriggerClosed, *bad) as events:
        async with life.daemon:
            for number in range(1, EDITS + 1):
                await life.one_edit()
                if number % COMPARED_EVERY == 0:
                    await life.compare()
            # Every desk that ever was comes back, and what it left is answered.
            for name in {f'd{n}' for n in range(7)} - {desk['name'] for desk in life.editor.draft.desks}:
                life.editor.draft.desks.append({'name': name, 'backends': ['slow']})
            life.file.write_text(life.editor.draft.text())
            await life.daemon.configuration.reload()
            await life.settle()
        seen = told(events, Event)
    assert [event for event in seen if isinstance(event, bad)] == []
    finished = [event for event in seen if isinstance(event, TurnFinished)]
    assert sorted(event.trigger_id for event in finished) == sorted(life.sent)
    assert {event.attempt for event in finished} == {1}
    assert all(event.desk == life.sent[event.trigger_id] for event in finished)
    assert {event.turn_id for event in finished} >= life.untouched_turns
    assert len([event for event in seen if isinstance(event, TurnStarted)]) == len(life.sent)
    assert len(life.sent) > EDITS
    assert len(life.untouched_turns) > EDITS / 4
    assert len(life.put_in_force) > EDITS / 2
    for name in set(life.sent.values()):
        for_it = [trigger_id for trigger_id, desk in life.sent.items() if desk == name]
        log = life.workspace / 'desks' / name / 'sessions' / '2026-03-10-1.jsonl'
        exchanges = [msgspec.json.decode(line)['trigger_id'] for line in log.read_bytes().split(b'\n') if line]
        assert sorted(exchanges) == sorted(for_it)


# -- one thing at a time -----------------------------------------------------------------------------------------


def gated(workspace: Path, gate: Gate, *names: str, **keys: Any) -> Config:  # noqa: ANN401 - as in the configuration
    """Returns a configuration of desks whose backend is held by the test."""
    desks = [Desk(name=name, backends=['held']) for name in names]
    return config_for(workspace, desks=desks, backends={'held': gate.backend()}, **keys)


def shown(daemon: Daemon) -> dict[str, DeskStatus]:
    """Returns what `status` shows of each desk."""
    return {desk.name: desk for desk in Operations(daemon).status().desks}


async def test_a_removed_desk(tmp_path: Path) -> None:
    """A removed desk's turn ends and is recorded; what waits is kept and shown, and answered once it is back."""
    gate = Gate()
    config = gated(tmp_path, gate, 'stays', 'goes')
    async with daemon_of(config) as daemon:
        for trigger_id in ('runs', 'waits', 'waits too'):
            await send(daemon, 'goes', trigger_id)
        await until(lambda: gate.seen, 'the turn runs')
        with daemon.bus.subscribe(TurnFinished, TurnInterrupted, DeskStarted) as events:
            changes = await daemon.configuration.apply(gated(tmp_path, gate, 'stays'))
            assert (changes.added, changes.changed, changes.removed) == ([], [], ['desk goes'])
            assert shown(daemon)['goes'].state == 'parked'
            receipt = await daemon.bus.send(Trigger('more', 'goes'))
            assert (receipt.status, receipt.reason) == ('refused', 'unknown_desk')
            gate.open()
            (finished,) = await until(lambda: told(events, TurnFinished), 'the turn has ended')
            assert (finished.trigger_id, finished.attempt) == ('runs', 1)
            await until(lambda: 'goes' not in daemon.supervisor.desks, 'the desk has ended')
            await until(lambda: shown(daemon)['goes'].queue == 2, 'what waits is shown')
            status = shown(daemon)['goes']
            assert '2 triggers wait for it' in status.reason
            assert 'configure it again' in status.reason
            await answered(daemon, 'stays', 'beside')
            assert list(shown(daemon)) == ['stays', 'goes']
            told(events, Event)
            await daemon.configuration.apply(config)
            # An exchange is there a moment before its trigger is closed.
            await until(
                lambda: (shown(daemon)['goes'].exchanges, shown(daemon)['goes'].queue) == (3, 0), 'all answered'
            )
            assert daemon.configuration.unconfigured == []
            assert told(events, TurnInterrupted) == []


async def test_unconfigured_at_the_start(tmp_path: Path) -> None:
    """What a desk of an earlier configuration left is shown from the start on; nothing in its folder is touched."""
    gate = Gate()
    async with daemon_of(gated(tmp_path, gate, 'gone', 'empty')) as daemon:
        await daemon.supervisor.desks['gone'].pause('asha', '', now=False)
        await send(daemon, 'gone', 'waits')
    for odd in ('Not A Desk', 'nothing'):
        (tmp_path / 'desks' / odd).mkdir()
    (tmp_path / 'desks' / 'a-file').write_text('no folder')
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / 'desks' / 'gone').rglob('*')}
    async with daemon_of(gated(tmp_path, gate, 'main')) as daemon:
        assert list(shown(daemon)) == ['main', 'gone']
        status = shown(daemon)['gone']
        assert (status.queue, status.state) == (1, 'parked')
        assert status.oldest_trigger_at is not None
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / 'desks' / 'gone').rglob('*')} == before


async def test_removed_and_added_while_its_turn_runs(tmp_path: Path) -> None:
    """A desk that comes back before its turn has ended goes on with it, once, and then with what it is now."""
    gate = Gate()
    async with daemon_of(gated(tmp_path, gate, 'stays', 'back')) as daemon:
        await send(daemon, 'back', 'runs')
        await until(lambda: gate.seen, 'the turn runs')
        desk = daemon.supervisor.desks['back']
        with daemon.bus.subscribe(TurnFinished, TurnStarted, TurnInterrupted) as events:
            for _ in range(3):
                await daemon.configuration.apply(gated(tmp_path, gate, 'stays'))
                assert (await daemon.bus.send(Trigger('x', 'back'))).reason == 'unknown_desk'
                config = gated(tmp_path, gate, 'stays')
                config.desks.append(Desk(name='back', queue_limit=7))
                await daemon.configuration.apply(config)
                assert (await daemon.bus.send(Trigger('x', 'back', id='waits'))).status in {'accepted', 'duplicate'}
            assert daemon.supervisor.desks['back'] is desk
            assert shown(daemon)['back'].turn is not None
            assert told(events, Event) == []
            gate.open()
            await until(lambda: not desk.queue.depth, 'both are answered')
            await daemon.supervisor.settled()
            seen = [(type(e).__name__, e.turn_id, getattr(e, 'backend', '')) for e in told(events, Event)]  # type: ignore[attr-defined]
        assert seen == [
            ('TurnFinished', 'runs:1', 'held'),
            ('TurnStarted', 'waits:1', ''),
            ('TurnFinished', 'waits:1', 'offline'),
        ]
        assert (desk.settings.queue_limit, desk.queue.limit) == (7, 7)
        assert not desk.retiring


async def test_settings_count_after_the_turn(tmp_path: Path) -> None:
    """A changed desk ends its turn as it began it; the next one is run by what is configured now, the last change."""
    gate, other = Gate(), Gate(is_open=True)

    def config(backend: str, **settings: Any) -> Config:  # noqa: ANN401 - a desk's
        return config_for(
            tmp_path,
            desks=[Desk(name='main', backends=[backend], **settings)],
            backends={'first': gate.backend(), 'second': other.backend()},
        )

    async with daemon_of(config('first')) as daemon:
        desk = daemon.supervisor.desks['main']
        await send(daemon, 'main', 'one')
        await until(lambda: gate.seen, 'the turn runs')
        with daemon.bus.subscribe(TurnFinished, TurnInterrupted) as events:
            changes = await daemon.configuration.apply(config('offline'))
            assert changes.changed == ['desk main']
            await daemon.configuration.apply(config('second', queue_limit=3))
            await send(daemon, 'main', 'two')
            assert desk.settings.backends == ['first']
            gate.open()
            await until(lambda: not desk.queue.depth, 'both are answered')
            seen = [(e.trigger_id, e.attempt, e.backend) for e in told(events, TurnFinished)]
        assert seen == [('one', 1, 'first'), ('two', 1, 'second')]
        assert desk.settings == config('second', queue_limit=3).desks[0]
        assert [backend.name for backend in desk.status().backends] == ['second']


async def test_a_parked_desk(tmp_path: Path) -> None:
    """A parked desk whose table is changed is tried again; one that is not changed stays as it is."""
    for name in ('a', 'b'):
        (tmp_path / 'desks' / name).mkdir(parents=True)
        (tmp_path / 'desks' / name / 'sessions').write_text('a file in the place of a folder')

    def config(limit: int) -> Config:
        return config_for(tmp_path, desks=[Desk(name='a', queue_limit=limit), Desk(name='b'), Desk(name='c')])

    async with daemon_of(config(5)) as daemon:
        assert [desk.state for desk in shown(daemon).values()] == ['parked', 'parked', 'running']
        for name in ('a', 'b'):
            (tmp_path / 'desks' / name / 'sessions').unlink()
        await daemon.configuration.apply(config(6))
        await answered(daemon, 'a', 'one')
        assert [desk.state for desk in shown(daemon).values()] == ['running', 'parked', 'running']


async def test_what_needs_a_restart(tmp_path: Path) -> None:
    """Another workspace or group of the socket is refused, with everything else in that file."""
    async with daemon_of(config_for(tmp_path)) as daemon:
        before = shown(daemon)
        for keys in ({'workspace': tmp_path / 'other'}, {'control_group': 'daemon'}):
            wanted = msgspec.structs.replace(
                config_for(tmp_path, desks=[Desk(name='main', queue_limit=1), Desk(name='new')], log_level='debug'),
                **keys,
            )
            with pytest.raises(ConfigurationError, match='cannot be changed while the daemon runs') as caught:
                await daemon.configuration.apply(wanted)
            assert next(iter(keys)) in caught.value.problems[0].where
            assert 'restart' in caught.value.problems[0].hint
            assert shown(daemon) == before
            assert daemon.config.log_level == 'info'
            assert not (tmp_path / 'other').exists()
            assert not (tmp_path / 'desks' / 'new').exists()


async def test_how_many_turns_at_once(tmp_path: Path) -> None:
    """`max_concurrent_turns` counts for turns that wait, too: raised it lets them begin, lowered it holds the next."""
    gate = Gate()
    names = [f'd{n}' for n in range(4)]
    async with daemon_of(gated(tmp_path, gate, *names, max_concurrent_turns=1)) as daemon:
        for name in names:
            await send(daemon, name, f'{name}-1')
        await until(lambda: gate.seen, 'one runs')
        await anyio.sleep(0.05)
        assert len(gate.seen) == 1
        await daemon.configuration.apply(gated(tmp_path, gate, *names, max_concurrent_turns=3))
        await until(lambda: len(gate.seen) == 3, 'three run')
        await anyio.sleep(0.05)
        assert len(gate.seen) == 3
        await daemon.configuration.apply(gated(tmp_path, gate, *names, max_concurrent_turns=2))
        gate.open()
        await daemon.supervisor.settled()
        gate.seen.clear()
        gate.shut()
        for name in names:
            await send(daemon, name, f'{name}-2')
        await until(lambda: len(gate.seen) == 2, 'two run')
        await anyio.sleep(0.05)
        assert len(gate.seen) == 2
        gate.open()


async def test_the_longest_trigger(tmp_path: Path) -> None:
    """`max_trigger_size` counts at once, for desks that were there and for new ones."""
    text = 'x' * 100

    async def reason(daemon: Daemon, desk: str) -> str | None:
        return (await daemon.bus.send(Trigger(text, desk))).reason

    async with daemon_of(config_for(tmp_path)) as daemon:
        assert await reason(daemon, 'main') is None
        both = [Desk(name='main'), Desk(name='new')]
        await daemon.configuration.apply(config_for(tmp_path, desks=both, max_trigger_size=Size(99)))
        assert [await reason(daemon, desk.name) for desk in both] == ['too_large', 'too_large']
        await daemon.configuration.apply(config_for(tmp_path, desks=both, max_trigger_size=Size(100)))
        assert [await reason(daemon, desk.name) for desk in both] == [None, None]


async def test_the_drain(tmp_path: Path) -> None:
    """`drain` counts for the stop that comes after the change."""
    gate = Gate()
    config = gated(tmp_path, gate, 'main', drain=Duration(600))
    daemon = daemon_of(config)
    with daemon.bus.subscribe(TurnInterrupted, since='oldest') as events:
        with anyio.fail_after(60):
            async with daemon:
                await send(daemon, 'main', 'one')
                await until(lambda: gate.seen, 'the turn runs')
                await daemon.configuration.apply(gated(tmp_path, gate, 'main', drain=Duration(0.1)))
        assert [(event.trigger_id, event.cause) for event in told(events, TurnInterrupted)] == [('one', 'stop')]


async def test_the_log(tmp_path: Path) -> None:
    """`log_level` and `log_content` count for the next line."""
    path = tmp_path / 'log'
    config = config_for(tmp_path / 'ws', log_level='error')
    daemon = daemon_of(config)
    with path.open('wb') as stream:
        log = Log(daemon.run_id, 'error', stream=stream, journald=False)
        daemon.on_config = log.configure

        async def logged(count: int) -> list[dict[str, Any]]:
            await until(lambda: path.read_bytes().count(b'\n') >= count, 'it is logged')
            return [msgspec.json.decode(line) for line in path.read_bytes().split(b'\n') if line]

        async with anyio.create_task_group() as tasks:
            await tasks.start(log.follow, daemon.bus)
            async with daemon:
                await answered(daemon, 'main', 'one')
                await daemon.bus.told()
                await daemon.configuration.apply(config_for(tmp_path / 'ws', log_level='info'))
                await answered(daemon, 'main', 'two')
                await until(lambda: b'"turn_finished"' in path.read_bytes(), 'it is logged')
                await daemon.configuration.apply(config_for(tmp_path / 'ws', log_content=True))
                await answered(daemon, 'main', 'three')
                await until(lambda: path.read_bytes().count(b'"turn_finished"') == 2, 'it is logged')
            tasks.cancel_scope.cancel()
    lines = await logged(1)
    accepted = [line for line in lines if line['event'] == 'trigger_accepted']
    assert [line['trigger_id'] for line in accepted] == ['two', 'three']
    assert [('text' in line, 'text_length' in line) for line in accepted] == [(False, True), (True, False)]
    assert lines[0]['event'] == 'config_reloaded'


async def test_the_order_of_the_desks(tmp_path: Path) -> None:
    """`status` shows the desks in the order of the file, after a reload as after a start."""

    def config(*names: str) -> Config:
        return config_for(tmp_path, desks=[Desk(name=name) for name in names])

    async with daemon_of(config('c', 'a')) as daemon:
        await daemon.configuration.apply(config('b', 'a', 'c'))
        assert list(shown(daemon)) == ['b', 'a', 'c']
        await daemon.configuration.apply(config('c', 'b', 'a'))
        assert list(shown(daemon)) == ['c', 'b', 'a']


# -- reading it again --------------------------------------------------------------------------------------------


class Reader:
    """Reads a configuration again, as the test wants it."""

    def __init__(self, config: Config) -> None:
        self.config: Config | Exception = config
        self.calls = 0
        self.entered = 0
        self.most = 0
        self.seconds = 0.0

    def __call__(self) -> Config:
        self.calls += 1
        self.entered += 1
        self.most = max(self.most, self.entered)
        config = self.config
        time.sleep(self.seconds)
        self.entered -= 1
        if isinstance(config, Exception):
            raise config
        return config


async def test_reloads_come_one_after_the_other(tmp_path: Path) -> None:
    """Of reloads at the same time none puts back what a later one has read."""
    reader = Reader(config_for(tmp_path))
    reader.seconds = 0.02
    async with daemon_of(config_for(tmp_path), read_config=reader) as daemon, anyio.create_task_group() as tasks:
        for limit in range(1, 8):
            reader.config = config_for(tmp_path, desks=[Desk(name='main', queue_limit=limit)])
            tasks.start_soon(daemon.configuration.reload)
            await anyio.sleep(0.005)
        await until(lambda: reader.calls == 7 and daemon.config.desks[0].queue_limit == 7, 'the last one counts')
        assert reader.most == 1


@pytest.mark.parametrize('kind', ['fails', 'none'])
async def test_any_failure_of_the_reader(tmp_path: Path, kind: str) -> None:
    """A reader that fails in a way of its own, and a daemon that has none, refuse the reload, and nothing ends."""
    reader = Reader(config_for(tmp_path))
    reader.config = KeyError('vault')
    async with daemon_of(config_for(tmp_path), read_config=None if kind == 'none' else reader) as daemon:
        with daemon.bus.subscribe(ConfigRejected) as events:
            with pytest.raises(ConfigurationError):
                await daemon.configuration.reload()
            assert len(told(events, ConfigRejected)) == 1
            daemon.ask_reload()
            (rejected,) = await until(lambda: told(events, ConfigRejected), 'it is told')
            assert ('no file to read' if kind == 'none' else "KeyError: 'vault'") in rejected.error
        await answered(daemon, 'main', 'after')


async def test_asked_while_it_starts_and_stops(tmp_path: Path) -> None:
    """A reload that is asked for during the start counts after it; during the stop it is refused."""
    gate = Gate()
    later = gated(tmp_path, gate, 'main', 'later')
    daemon = daemon_of(gated(tmp_path, gate, 'main'), read_config=Reader(later))
    async with anyio.create_task_group() as tasks:
        results: list[object] = []

        async def reload() -> None:
            results.append(await daemon.configuration.reload())

        daemon._build()  # as it is when the control socket is there already
        daemon._build = lambda: None  # type: ignore[method-assign]
        tasks.start_soon(reload)
        await anyio.sleep(0.02)
        assert results == []
        async with daemon:
            await until(lambda: results, 'the reload is done')
            assert list(daemon.supervisor.desks) == ['main', 'later']
            await send(daemon, 'later', 'runs')
            await until(lambda: gate.seen, 'the turn runs')
            daemon.stop('the test')
            with daemon.bus.subscribe(ConfigRejected) as events:
                with pytest.raises(ConfigurationError, match='is stopping'):
                    await daemon.configuration.reload()
                assert told(events, ConfigRejected)
            gate.open()
    assert list(daemon.supervisor.desks) == ['main', 'later']


async def test_systemd_hears_of_it(tmp_path: Path) -> None:
    """A reload, taken or refused, is RELOADING=1 with its time and then READY=1."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / 'notify'))
        manager.settimeout(30)
        notifier = Notifier({'NOTIFY_SOCKET': str(tmp_path / 'notify')})
        reader = Reader(config_for(tmp_path / 'ws'))
        async with daemon_of(config_for(tmp_path / 'ws'), notifier=notifier, read_config=reader) as daemon:
            assert manager.recv(4096).startswith(b'READY=1')
            for result in (reader.config, ConfigurationError([])):
                reader.config = result if isinstance(result, Config) else RuntimeError()
                before = time.monotonic_ns() // 1000
                with suppress(ConfigurationError):
                    await daemon.configuration.reload()
                reloading, stamp = manager.recv(4096).decode().split('\n')
                assert reloading == 'RELOADING=1'
                assert before <= int(stamp.removeprefix('MONOTONIC_USEC=')) <= time.monotonic_ns() // 1000
                assert manager.recv(4096).decode() == 'READY=1'


async def test_a_package_that_takes_long_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload that brings a slow package holds up no desk while that is imported."""
    (tmp_path / 'takes_long_to_import.py').write_text(
        'from test_configuration_life import IMPORTED, slow\n'
        'assert IMPORTED.wait(30)\n'
        'async def run(bus, options): pass\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    kind = Backend(kind='takes_long_to_import:slow', options={'milliseconds': 1})
    wanted = config_for(
        tmp_path / 'ws',
        desks=[Desk(name='main'), Desk(name='new', backends=['slow'])],
        backends={'slow': kind},
        components=[component('new', 'takes_long_to_import:run')],
    )
    async with daemon_of(config_for(tmp_path / 'ws')) as daemon, anyio.create_task_group() as tasks:
        tasks.start_soon(daemon.configuration.apply, wanted)
        await until(lambda: 'takes_long_to_import' in sys.modules, 'it is being imported')
        for number in range(10):
            await answered(daemon, 'main', f't{number}')
        assert 'new' not in daemon.supervisor.desks
        IMPORTED.set()
        await until(lambda: 'new' in daemon.supervisor.desks, 'it has been imported')
        await answered(daemon, 'new', 'one')


# -- watching the file -------------------------------------------------------------------------------------------


def atomically(path: Path, text: str) -> None:
    """Saves a file as most editors do."""
    temporary = path.with_suffix('.tmp')
    temporary.write_text(text)
    temporary.replace(path)


def in_place(path: Path, text: str) -> None:
    """Saves a file as a shell does."""
    path.write_text(text)


def by_the_second(path: Path, text: str) -> None:
    """Saves a file with the time that it had, as some tools that copy do."""
    stamp = path.stat()
    path.write_text(text)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def through_a_link(path: Path, text: str) -> None:
    """Lets the name point at another file, as deployments do."""
    target = path.with_name(f'{len(text)}-{time.monotonic_ns()}.toml')
    target.write_text(text)
    link = path.with_suffix('.link')
    link.symlink_to(target)
    link.replace(path)


@pytest.mark.parametrize('save', [atomically, in_place, by_the_second, through_a_link])
async def test_saving_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path, str], None]
) -> None:
    """With `watch_config` a saved change counts, once; a touch is none; a bad file is told once and changes nothing."""
    monkeypatch.setattr(configuration_module, 'WATCH_SECONDS', 0.02)
    path = tmp_path / 'trading-agent.toml'

    def text(limit: int) -> str:
        return f'watch_config = true\n[[desks]]\nname = "main"\nqueue_limit = {limit}\n'

    path.write_text(text(10))

    def load() -> Config:
        return config_module.load(path, tmp_path / 'ws', {})

    async with daemon_of(load(), read_config=load) as daemon:
        with daemon.bus.subscribe(ConfigReloaded, ConfigRejected) as events:
            for limit in (11, 12):
                save(path, text(limit))
                (reloaded,) = await until(lambda: told(events, Event), 'it is read')
                assert isinstance(reloaded, ConfigReloaded)
                assert daemon.config.desks[0].queue_limit == limit
            path.touch()
            await anyio.sleep(0.15)
            assert told(events, Event) == []
            save(path, text(0))
            (rejected,) = await until(lambda: told(events, Event), 'it is refused')
            assert isinstance(rejected, ConfigRejected)
            await anyio.sleep(0.15)
            assert told(events, Event) == []
            assert daemon.config.desks[0].queue_limit == 12
            path.unlink()
            await anyio.sleep(0.1)
            path.write_text(text(0))
            await anyio.sleep(0.1)
            assert told(events, Event) == []
            save(path, text(13))
            await until(lambda: told(events, ConfigReloaded), 'the mended one is read')
            assert daemon.config.desks[0].queue_limit == 13
            # Saved and reloaded by hand: once is enough.
            save(path, text(14))
            await daemon.configuration.reload()
            await anyio.sleep(0.15)
            assert len(told(events, Event)) == 1


async def test_watching_is_configured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `watch_config` a saved file waits for a reload, which may turn the watching on, or off again."""
    monkeypatch.setattr(configuration_module, 'WATCH_SECONDS', 0.02)
    path = tmp_path / 'trading-agent.toml'
    path.write_text('')

    def load() -> Config:
        return config_module.load(path, tmp_path / 'ws', {})

    async with daemon_of(load(), read_config=load) as daemon:
        with daemon.bus.subscribe(ConfigReloaded, ConfigRejected) as events:
            path.write_text('watch_config = true\ndrain = "1s"\n')
            await anyio.sleep(0.15)
            assert told(events, Event) == []
            await daemon.configuration.reload()
            assert len(told(events, Event)) == 1
            await anyio.sleep(0.15)
            assert told(events, Event) == []
            path.write_text('watch_config = false\ndrain = "2s"\n')
            await until(lambda: daemon.config.drain == Duration(2), 'it is read')
            path.write_text('watch_config = true\ndrain = "3s"\n')
            await anyio.sleep(0.15)
            assert daemon.config.drain == Duration(2)


async def test_a_file_that_is_still_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows is not read before it rests."""
    monkeypatch.setattr(configuration_module, 'WATCH_SECONDS', 0.05)
    path = tmp_path / 'trading-agent.toml'
    path.write_text('watch_config = true\n')

    def load() -> Config:
        return config_module.load(path, tmp_path / 'ws', {})

    async with daemon_of(load(), read_config=load) as daemon:
        with daemon.bus.subscribe(ConfigReloaded, ConfigRejected) as events:
            for _ in range(40):
                with path.open('a') as file:
                    file.write('# a long comment\n')
                await anyio.sleep(0.01)
            with path.open('a') as file:
                file.write('drain = "7s"\n')
            await until(lambda: daemon.config.drain == Duration(7), 'it is read')
            assert len(told(events, Event)) == 1
