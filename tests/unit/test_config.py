"""The configuration: what may be in it, what a mistake is told like, and which file and workspace are used."""

import errno
import os
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import config
from trading_agent.config import Backend, Component, Config, Desk, ModelOptions, OfflineOptions
from trading_agent.errors import ConfigurationError, Problem
from trading_agent.settings import RANGES, File
from trading_agent.units import Duration, Size, TimeOfDay

EXAMPLE = Path(__file__).parents[2] / 'config' / 'trading-agent.toml'
FILE = Path('/etc/desk/trading-agent.toml')
KINDS = 'one of offline, anthropic, openai_compatible, claude_code, package.module:callable'


def parsed(text: str) -> Config:
    """Returns what a file with this text means."""
    return config.parse(text, FILE)


def problems(text: str) -> list[Problem]:
    """Returns what is wrong with a file with this text."""
    with pytest.raises(ConfigurationError) as caught:
        parsed(text)
    return caught.value.problems


def wrong_with(text: str) -> list[Problem]:
    """Returns what is wrong with a file with this text, maybe nothing."""
    try:
        parsed(text)
    except ConfigurationError as error:
        return error.problems
    return []


# -- what may be in it -------------------------------------------------------------------------------------------


def test_an_empty_file_is_the_default() -> None:
    """Without a key everything has its default: one desk, answered by the offline backend."""
    assert msgspec.structs.replace(parsed(''), file=None) == Config()
    assert parsed('').file == FILE
    assert [desk.name for desk in Config().desks] == ['main']
    assert Config().desks[0].backends == ['offline']


def test_every_key_can_be_set() -> None:
    """Each key takes a value of its kind, in the units that people write."""
    loaded = parsed("""
        workspace = "data"
        log_level = "debug"
        log_content = true
        max_concurrent_turns = 256
        drain = "2m"
        control_group = "trading"
        heartbeat_every = "1.5s"
        max_trigger_size = "64KiB"
        [backends.claude]
        kind = "my_package.backends:claude"
        model = "opus"
        limits = { tokens = 5 }
        [backends.stub]
        kind = "offline"
        delay = "500ms"
        chunk_delay = "1s"
        fail_every = 3
        hang_every = 4
        [[desks]]
        name = "nifty-50_options"
        backends = ["claude", "offline2"]
        rollover_at = "05:30"
        queue_limit = 7
        turn_timeout = "1h"
        summary_timeout = "90s"
        summary_budget = 500
        memory_budget = 600
        carry_summaries = 0
        [[desks]]
        name = "stub"
        backends = ["stub"]
        [backends.offline2]
        kind = "a.b:c"
    """)
    assert loaded == Config(
        workspace=Path('/etc/desk/data'),
        log_level='debug',
        log_content=True,
        max_concurrent_turns=256,
        drain=Duration(120),
        control_group='trading',
        heartbeat_every=Duration(1.5),
        max_trigger_size=Size(65536),
        backends={
            'offline': Backend(kind='offline'),
            'claude': Backend(kind='my_package.backends:claude', options={'model': 'opus', 'limits': {'tokens': 5}}),
            'stub': Backend(
                kind='offline', options={'delay': '500ms', 'chunk_delay': '1s', 'fail_every': 3, 'hang_every': 4}
            ),
            'offline2': Backend(kind='a.b:c'),
        },
        desks=[
            Desk(
                name='nifty-50_options',
                backends=['claude', 'offline2'],
                rollover_at=TimeOfDay(hours=5, minutes=30),
                queue_limit=7,
                turn_timeout=Duration(3600),
                summary_timeout=Duration(90),
                summary_budget=500,
                memory_budget=600,
                carry_summaries=0,
            ),
            Desk(name='stub', backends=['stub']),
        ],
        file=FILE,
    )
    stub = config.options_of(loaded.backends['stub'])
    assert stub == OfflineOptions(delay=Duration(0.5), chunk_delay=Duration(1), fail_every=3, hang_every=4)


def test_the_configuration_is_frozen() -> None:
    """No part of a checked configuration can be changed."""
    for part, name in ((Config(), 'drain'), (Config().desks[0], 'name'), (Config().backends['offline'], 'kind')):
        with pytest.raises(AttributeError):
            setattr(part, name, None)


def same_value(written: object, default: object) -> bool:
    """Returns whether a value of the file is a default of the code."""
    if isinstance(default, Duration | Size | TimeOfDay):
        return type(default).parse(str(written)) == default
    return written == default


@pytest.mark.parametrize('table', [Config, Desk, OfflineOptions])
def test_the_example_names_every_key_with_its_default(table: type[msgspec.Struct]) -> None:
    """The example file has every key of every table with its default; those that default to none as a comment."""
    raw = tomllib.loads(EXAMPLE.read_text())
    written: dict[str, Any] = {Config: raw, Desk: raw['desks'][0], OfflineOptions: raw['backends']['offline']}[table]
    defaults = table(name='main') if table is Desk else table()
    for key in table.__struct_fields__:
        default = getattr(defaults, key)
        if table is Config and key in ('backends', 'desks', 'file'):
            continue
        if key == 'components':
            shown = {name for name in Component.__struct_fields__ if f'\n# {name} = ' in EXAMPLE.read_text()}
            assert '# [[components]]' in EXAMPLE.read_text()
            assert shown == set(Component.__struct_fields__)
            continue
        if default is None or key == 'workspace':
            assert re.search(rf'^# {key} = "', EXAMPLE.read_text(), re.MULTILINE), key
            assert key not in written
        else:
            assert same_value(written[key], default), key
    assert set(written) - set(table.__struct_fields__) <= {'kind'}


def test_the_example_shows_real_models() -> None:
    """Taken out of their comments, the examples of real backends are good, and show every key of a model."""
    text = re.sub(r'^# (\[backends\.|[a-z_]+ = )', r'\1', EXAMPLE.read_text(), flags=re.MULTILINE)
    raw = tomllib.loads(text.partition('# A backend of your own')[0])['backends']
    assert set(raw['claude']) == {'kind', *ModelOptions.__struct_fields__}
    for name in ('claude', 'gpt', 'agent'):
        options = {key: value for key, value in raw[name].items() if key != 'kind'}
        config.options_of(Backend(kind=raw[name]['kind'], options=options))


def test_the_example_loads_as_the_default() -> None:
    """The example file means what no file means, but for the file itself."""
    loaded = config.load(EXAMPLE, environ={})
    assert loaded.file == EXAMPLE
    expected = Config(desks=loaded.desks, backends=loaded.backends, file=EXAMPLE)
    assert loaded == expected
    assert loaded.desks == Config().desks
    assert config.options_of(loaded.backends['offline']) == OfflineOptions()


def test_every_number_has_a_range() -> None:
    """Each number, span and size of each table is bounded, and its default is within."""
    for table in (Config(), Desk(name='main'), OfflineOptions()):
        for key in table.__struct_fields__:
            value = getattr(table, key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                low, high, _ = RANGES[key]
                assert low <= value <= high, key


# -- mistakes ----------------------------------------------------------------------------------------------------

MAIN = '[[desks]]\nname = "main"\n'
STUB = '[backends.stub]\nkind = "offline"\n'


@pytest.mark.parametrize(
    ('text', 'key', 'what', 'hint'),
    [
        # a key that is none
        ('log_levle = "info"', 'log_levle', 'no such key', "did you mean 'log_level'?"),
        ('max_concurent_turns = 4', 'max_concurent_turns', 'no such key', "did you mean 'max_concurrent_turns'?"),
        ('[desk]\nname = "main"', 'desk', 'no such key', "did you mean 'desks'?"),
        ('[[desk]]\nname = "main"', 'desk', 'no such key', "did you mean 'desks'?"),
        ('[backend.x]\nkind = "offline"', 'backend', 'no such key', "did you mean 'backends'?"),
        ('zzz = 1', 'zzz', 'no such key', 'remove it'),
        (f'{MAIN}roll_over_at = "05:30"', 'desks[0].roll_over_at', 'no such key', "did you mean 'rollover_at'?"),
        (f'{MAIN}{MAIN}backend = ["x"]', 'desks[1].backend', 'no such key', "did you mean 'backends'?"),
        (f'{STUB}chunk_dely = "1s"', 'backends.stub.chunk_dely', 'no such key', "did you mean 'chunk_delay'?"),
        # a key in another table than its own
        (f'{MAIN}log_level = "info"', 'desks[0].log_level', 'no such key', 'it belongs at the top, before any table'),
        ('queue_limit = 5', 'queue_limit', 'no such key', 'it belongs under [[desks]]'),
        ('delay = "5s"', 'delay', 'no such key', 'it belongs under its backend'),
        (f'{STUB}drain = "5s"', 'backends.stub.drain', 'no such key', 'it belongs at the top, before any table'),
        # a value of another kind
        ('log_level = "verbose"', 'log_level', "'verbose'", 'one of debug, info, warning, error'),
        ('log_level = 3', 'log_level', 'Expected `str`', ''),
        ('log_content = 1', 'log_content', 'Expected `bool`', ''),
        ('log_content = "yes"', 'log_content', 'Expected `bool`', ''),
        ('max_concurrent_turns = "4"', 'max_concurrent_turns', 'Expected `int`', ''),
        ('max_concurrent_turns = 4.5', 'max_concurrent_turns', 'Expected `int`', ''),
        ('max_concurrent_turns = true', 'max_concurrent_turns', 'Expected `int`', ''),
        ('max_concurrent_turns = nan', 'max_concurrent_turns', 'Expected `int`', ''),
        ('control_group = 7', 'control_group', 'Expected `str', ''),
        ('workspace = 7', 'workspace', 'Expected `str', ''),
        ('workspace = ""', 'workspace', 'no folder', 'name one, or remove the key'),
        ('workspace = "a\\u0000b"', 'workspace', 'no folder', 'name one, or remove the key'),
        ('drain = 30', 'drain', 'such as "30s", not 30', ''),
        ('drain = "30"', 'drain', "500ms, 30s, 10m or 2h, not '30'", ''),
        ('drain = "-5s"', 'drain', 'written like', ''),
        ('drain = "1 week"', 'drain', 'written like', ''),
        ('heartbeat_every = [1]', 'heartbeat_every', 'such as "30s"', ''),
        ('max_trigger_size = 1024', 'max_trigger_size', 'such as "64KiB", not 1024', ''),
        ('max_trigger_size = "1MB"', 'max_trigger_size', '64KiB or 1MiB', ''),
        (f'{MAIN}rollover_at = 05:30:00', 'desks[0].rollover_at', 'such as "05:30"', ''),
        (f'{MAIN}rollover_at = "12:00"', 'desks[0].rollover_at', 'from 00:00 to 11:59', ''),
        (f'{MAIN}rollover_at = "5:30"', 'desks[0].rollover_at', 'written like 05:30', ''),
        (f'{MAIN}rollover_at = "24:00"', 'desks[0].rollover_at', 'written like 05:30', ''),
        (f'{MAIN}backends = "offline"', 'desks[0].backends', 'Expected `array`', ''),
        (f'{MAIN}backends = [1]', 'desks[0].backends[0]', 'Expected `str`', ''),
        ('desks = 1', 'desks', 'Expected `array`', ''),
        ('desks = ["main"]', 'desks[0]', 'Expected `object`', ''),
        ('[desks]\nname = "main"', 'desks', 'Expected `array`', ''),
        ('backends = 1', 'backends', 'Expected `object`', ''),
        ('[backends]\nstub = "offline"', 'backends.stub', 'no table', 'write [backends.stub]'),
        (f'{STUB}delay = 5', 'backends.stub.delay', 'such as "30s"', ''),
        (f'{STUB}fail_every = "3"', 'backends.stub.fail_every', 'Expected `int`', ''),
        # a value out of its range
        ('max_concurrent_turns = 0', 'max_concurrent_turns', 'out of range: 0', 'from 1 to 256'),
        ('max_concurrent_turns = 257', 'max_concurrent_turns', 'out of range: 257', 'from 1 to 256'),
        ('drain = "2h"', 'drain', 'out of range', 'from 0s to 1h'),
        ('heartbeat_every = "100ms"', 'heartbeat_every', 'out of range', 'from 1s to 1h'),
        ('max_trigger_size = "0B"', 'max_trigger_size', 'out of range', 'from 1B to 1MiB'),
        ('max_trigger_size = "2MiB"', 'max_trigger_size', 'out of range', 'from 1B to 1MiB'),
        (f'{MAIN}queue_limit = 0', 'desks[0].queue_limit', 'out of range: 0', 'from 1 to 1000000'),
        (f'{MAIN}turn_timeout = "0s"', 'desks[0].turn_timeout', 'out of range', 'from 1ms to 24h'),
        (f'{MAIN}summary_timeout = "25h"', 'desks[0].summary_timeout', 'out of range', 'from 1ms to 24h'),
        (f'{MAIN}summary_budget = 10', 'desks[0].summary_budget', 'out of range', 'from 200 to 1000000 characters'),
        (f'{MAIN}memory_budget = 10', 'desks[0].memory_budget', 'out of range', 'from 200 to 1000000 characters'),
        (f'{MAIN}carry_summaries = -1', 'desks[0].carry_summaries', 'out of range: -1', 'from 0 to 100'),
        (f'{STUB}fail_every = -1', 'backends.stub.fail_every', 'out of range: -1', '0 or more'),
        (f'{STUB}hang_every = -1', 'backends.stub.hang_every', 'out of range: -1', '0 or more'),
        (f'{STUB}delay = "25h"', 'backends.stub.delay', 'out of range', 'from 0s to 24h'),
        (f'{STUB}chunk_delay = "25h"', 'backends.stub.chunk_delay', 'out of range', 'from 0s to 24h'),
        # a name that is none
        ('[[desks]]\nqueue_limit = 5', 'desks[0]', 'missing required field `name`', ''),
        ('[[desks]]\nname = ""', 'desks[0].name', "'' is no desk name", 'a-z, 0-9, _ and -, at most 63'),
        ('[[desks]]\nname = "Main"', 'desks[0].name', 'no desk name', 'a-z, 0-9, _ and -, at most 63'),
        ('[[desks]]\nname = "../x"', 'desks[0].name', 'no desk name', 'a-z, 0-9, _ and -, at most 63'),
        ('[[desks]]\nname = "-x"', 'desks[0].name', 'no desk name', 'a-z, 0-9, _ and -, at most 63'),
        (f'[[desks]]\nname = "{"x" * 64}"', 'desks[0].name', 'no desk name', 'a-z, 0-9, _ and -, at most 63'),
        ('[[desks]]\nname = "main\\n"', 'desks[0].name', 'no desk name', 'a-z, 0-9, _ and -, at most 63'),
        (f'{MAIN}{MAIN}', 'desks[1].name', "a second desk is named 'main'", 'each desk has its own name'),
        # a backend that is none
        (f'{MAIN}backends = []', 'desks[0].backends', 'is empty', 'name at least one backend'),
        (f'{MAIN}backends = ["ofline"]', 'desks[0].backends', "no backend 'ofline'", "did you mean 'offline'?"),
        (f'{MAIN}backends = ["gpt"]', 'desks[0].backends', "no backend 'gpt'", 'declare it as [backends.gpt]'),
        ('[backends.x]', 'backends.x.kind', 'is missing', KINDS),
        ('[backends.x]\nkind = 3', 'backends.x.kind', 'no text: 3', KINDS),
        ('[backends.x]\nkind = "ofline"', 'backends.x.kind', 'no kind of backend', "did you mean 'offline'?"),
        ('[backends.x]\nkind = "gpt"', 'backends.x.kind', 'no kind', KINDS),
        ('[backends.x]\nkind = "a.b:"', 'backends.x.kind', 'no kind', KINDS),
        (
            f'{MAIN}backends = ["x", "offline"]\n[backends.x]\nkind = "a:b"',
            'desks[0].backends',
            '`offline` stands behind a real backend',
            'an alert answered by a stub is not answered: let it wait for the real one',
        ),
        (
            f'{MAIN}backends = ["offline", "x", "stub"]\n{STUB}[backends.x]\nkind = "a:b"',
            'desks[0].backends',
            '`offline` stands behind a real backend',
            'an alert answered by a stub is not answered: let it wait for the real one',
        ),
    ],
)  # fmt: skip
def test_a_mistake_names_the_file_the_key_and_what_to_do(text: str, key: str, what: str, hint: str) -> None:
    """A mistake is told with the file, the key, what is wrong with it, and the nearest that would be right."""
    (problem,) = problems(text)
    assert problem.where == f'{FILE}: {key}'
    assert what in problem.what
    assert problem.hint == hint
    assert str(problem).startswith(f'{FILE}: {key}: ')


def test_several_typos_are_told_at_once() -> None:
    """A file with a wrong key at the top, in a desk and in a component is mended in one go: each is told."""
    text = (
        'log_levle = "info"\n[[desks]]\nname = "a"\nbackend = ["offline"]\n[[components]]\nnmae = "c"\nentry = "a:b"\n'
    )
    told = [(problem.where, problem.hint) for problem in problems(text)]
    assert told == [
        (f'{FILE}: log_levle', "did you mean 'log_level'?"),
        (f'{FILE}: desks[0].backend', "did you mean 'backends'?"),
        (f'{FILE}: components[0].nmae', "did you mean 'name'?"),
    ]


def test_every_key_with_a_typo_is_told_the_right_one() -> None:
    """Whatever key of whatever table loses a letter, the right one is named."""
    tables = ((File, '{}', ''), (Desk, f'{MAIN}{{}}', 'desks[0].'), (OfflineOptions, f'{STUB}{{}}', 'backends.stub.'))  # fmt: skip # noqa: E501
    for table, around, place in tables:
        for key in table.__struct_fields__:
            typo = key[:2] + key[3:]
            (problem,) = problems(around.format(f'{typo} = 1'))
            assert problem.where == f'{FILE}: {place}{typo}'
            assert problem.hint == f'did you mean {key!r}?'


def test_several_wrong_values_are_told_together() -> None:
    """Values that are out of range are all told at once, each with its place."""
    found = problems(f'drain = "2h"\n{MAIN}queue_limit = 0\n[[desks]]\nname = "X"\nbackends = ["gpt"]')
    assert [problem.where.removeprefix(f'{FILE}: ') for problem in found] == [
        'drain',
        'desks[0].queue_limit',
        'desks[1].name',
        'desks[1].backends',
    ]


@pytest.mark.parametrize('text', ['a = ', '[', 'a = 1\na = 2', f'a = {"9" * 5000}', 'a = ' + '[' * 100_000, '\x00'])
def test_what_is_no_toml_is_told(text: str) -> None:
    """A file that is no TOML is told so, with its name, however it is broken."""
    (problem,) = problems(text)
    assert problem.where == str(FILE)
    assert problem.what.startswith('is not TOML: ')


@given(text=st.text(max_size=60))
@settings(deadline=None, max_examples=100)
def test_any_text_is_a_configuration_or_a_problem(text: str) -> None:
    """No text makes anything but a configuration or a told mistake."""
    assert wrong_with(text) is not None


VALUES = st.one_of(
    st.sampled_from(['1', '-1', '0', '1e400', 'nan', 'true', '""', '"5s"', '"x"', '[]', '[1]', '[[]]', '{}', '{a=1}',
                     '2026-10-19', '05:30:00', '"offline"', '["offline"]', '9' * 30, '"64KiB"', '"99999999999h"']),
)  # fmt: skip
KEYS = st.sampled_from([*File.__struct_fields__, *Desk.__struct_fields__, 'kind', 'delay', 'x'])


@given(
    top=st.dictionaries(KEYS, VALUES, max_size=2),
    desk=st.dictionaries(KEYS, VALUES, max_size=3),
    backend=st.dictionaries(KEYS, VALUES, max_size=3),
)
@settings(deadline=None, max_examples=200)
def test_any_value_anywhere(top: dict[str, str], desk: dict[str, str], backend: dict[str, str]) -> None:
    """Whatever value a key has in whatever table, it is taken, or told with the file's name."""

    def lines(table: dict[str, str]) -> str:
        return ''.join(f'{key} = {value}\n' for key, value in table.items())

    found = wrong_with(f'{lines(top)}[[desks]]\n{lines(desk)}[backends.offline]\n{lines(backend)}')
    assert all(problem.where.startswith(str(FILE)) and problem.what for problem in found)


def test_the_options_of_a_backend_are_checked_where_they_are_used() -> None:
    """`options_of` tells a wrong option of a backend that was not made from a file."""
    with pytest.raises(ConfigurationError) as caught:
        config.options_of(Backend(kind='offline', options={'delay': 3}), 'the backend')
    assert caught.value.problems[0].where == 'the backend: delay'


# -- which file --------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Empties the usual places and stands in a folder without a file."""
    monkeypatch.chdir(tmp_path)
    found = [Path('trading-agent.toml'), tmp_path / 'etc' / 'trading-agent.toml']
    monkeypatch.setattr(config, 'CONFIG_PLACES', tuple(found))
    return found


def test_which_file_is_read(places: list[Path]) -> None:
    """The option comes before the environment, that before the usual places in their order, and then there is none."""
    option, environ = Path('option.toml'), {'TRADING_AGENT_CONFIG': 'environ.toml'}
    assert config.find_file(option, environ) == option
    assert config.find_file(None, environ) == Path('environ.toml')
    assert config.find_file(None, {'TRADING_AGENT_CONFIG': ''}) is None
    places[1].parent.mkdir()
    places[1].touch()
    assert config.find_file(None, {}) == places[1]
    places[0].touch()
    assert config.find_file(None, {}) == places[0]
    assert config.CONFIG_PLACES[0] == Path('trading-agent.toml')


def test_a_place_that_may_not_be_looked_at_is_told(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that this user may not even see is a told mistake: the default instead would hide it."""
    real = os.stat

    def stat(path: object, **options: Any) -> os.stat_result:  # noqa: ANN401
        if str(path) == str(places[1]):
            raise PermissionError(errno.EACCES, 'Permission denied')
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, 'stat', stat)
    assert config.find_file(None, {}) == places[1]
    with pytest.raises(ConfigurationError) as caught:
        config.load(None, environ={})
    assert caught.value.problems[0].where == str(places[1])


def test_a_file_that_is_named_must_be_there(places: list[Path], tmp_path: Path) -> None:
    """A file that is named and missing, a folder, or not UTF-8 is a told mistake; a BOM is none."""
    for bad, what in (('missing.toml', 'cannot be read: No such file'), ('.', 'cannot be read: Is a directory')):
        with pytest.raises(ConfigurationError) as caught:
            config.load(Path(bad), environ={})
        assert (caught.value.problems[0].where, caught.value.problems[0].what[: len(what)]) == (bad, what)
    path = tmp_path / 'x.toml'
    path.write_bytes(b'log_level = "\xff"')
    with pytest.raises(ConfigurationError, match='not UTF-8'):
        config.load(path, environ={})
    path.write_bytes(b'\xef\xbb\xbflog_level = "error"')
    assert config.load(path, environ={}).log_level == 'error'


def test_the_environment_of_the_process(places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment the process's own is read."""
    (tmp_path / 'mine.toml').write_text('log_level = "error"')
    monkeypatch.setenv('TRADING_AGENT_CONFIG', 'mine.toml')
    monkeypatch.setenv('TRADING_AGENT_WORKSPACE', '/there')
    loaded = config.load()
    assert (loaded.log_level, loaded.workspace) == ('error', Path('/there'))


# -- which workspace ---------------------------------------------------------------------------------------------


def test_which_workspace_is_used(places: list[Path], tmp_path: Path) -> None:
    """The option comes before the environment, that before the file, that before systemd's folder and ./workspace."""
    file = tmp_path / 'conf' / 'x.toml'
    file.parent.mkdir()
    file.write_text('workspace = "from-file"')
    bare = tmp_path / 'conf' / 'bare.toml'
    bare.touch()
    environ = {'TRADING_AGENT_WORKSPACE': '/from-environ', 'STATE_DIRECTORY': '/var/lib/a:/var/lib/b'}
    systemd = {'TRADING_AGENT_WORKSPACE': '', 'STATE_DIRECTORY': '/var/lib/a:/var/lib/b'}
    assert config.load(file, Path('option'), environ).workspace == Path('option')
    assert config.load(file, None, environ).workspace == Path('/from-environ')
    assert config.load(file, None, systemd).workspace == tmp_path / 'conf' / 'from-file'
    assert config.load(bare, None, systemd).workspace == Path('/var/lib/a')
    assert config.load(None, None, systemd).workspace == Path('/var/lib/a')
    assert config.load(bare, None, {'STATE_DIRECTORY': ''}).workspace == Path('workspace')
    assert config.load(None, None, {}).workspace == Path('workspace')


def test_a_workspace_in_the_file_is_relative_to_the_file(tmp_path: Path) -> None:
    """A relative workspace counts from the file's folder, an absolute one stays."""
    file = tmp_path / 'x.toml'
    file.write_text('workspace = "../data"')
    assert config.load(file, environ={}).workspace == tmp_path / '../data'
    file.write_text('workspace = "/data"')
    assert config.load(file, environ={}).workspace == Path('/data')


def test_a_workspace_that_is_written_counts_although_it_is_the_usual_one(places: list[Path]) -> None:
    """A file that says `workspace = "workspace"` means it, also under systemd."""
    places[0].write_text('workspace = "workspace"')
    assert config.load(None, None, {'STATE_DIRECTORY': '/var/lib/a'}).workspace == Path('workspace')


# -- units -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('text', 'seconds'),
    [('0s', 0), ('500ms', 0.5), ('30s', 30), ('1.5s', 1.5), ('10m', 600), ('2h', 7200), (' 1s ', 1)],
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds."""
    assert Duration.parse(text) == seconds


@pytest.mark.parametrize(
    ('text', 'size'), [('0B', 0), ('512B', 512), ('64KiB', 65536), ('1MiB', 1 << 20), ('2GiB', 2 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    """A size is a number of bytes."""
    assert Size.parse(text) == size


@pytest.mark.parametrize(('text', 'minutes'), [('00:00', 0), ('05:30', 330), ('11:59', 719)])
def test_times_of_the_day(text: str, minutes: int) -> None:
    """A time of the day is the span since midnight."""
    assert TimeOfDay.parse(text) == timedelta(minutes=minutes)


@pytest.mark.parametrize('text', ['', '5', 's', '5 s', '-5s', '5d', '5S', '1e3s', '5s5s', 'x' * 5000, '9' * 5000 + 'B'])
def test_what_is_no_unit(text: str) -> None:
    """Anything else is a ValueError for each of them, or a size or duration beyond every range."""
    for kind in (Duration, Size, TimeOfDay):
        with pytest.raises(ValueError, match=r'.'):
            kind.parse(text)
