"""The client's quick look for the workspace, against what `run` does."""

import itertools
from pathlib import Path

import pytest

from trading_agent import config, settings
from trading_agent.cli import workspace
from trading_agent.errors import ConfigurationError

FILES = {
    'none': None,
    'empty': '',
    'relative': 'workspace = "var"',
    'the default, named': 'workspace = "workspace"',
    'absolute': 'workspace = "/srv/desks"',
}


@pytest.mark.parametrize('text', FILES.values(), ids=FILES)
@pytest.mark.parametrize('how', ['option', 'environment', 'place', 'place here'])
def test_it_is_the_workspace_that_run_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, how: str
) -> None:
    """For every way to name a file and a workspace, the client looks where `run` would work."""
    monkeypatch.chdir(tmp_path)
    file = Path('trading-agent.toml') if how == 'place here' else tmp_path / 'etc' / 'desk.toml'
    if text is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    for module in (config, workspace):
        monkeypatch.setattr(module, 'CONFIG_PLACES', (Path('trading-agent.toml'), file))
    option = file if how == 'option' and text is not None else None
    for named, in_environment, state_directory in itertools.product(
        (None, Path('given')),
        (None, '/from/environment'),
        (None, '/var/lib/trading-agent', '/first:/second', ''),
    ):
        environ = {'TRADING_AGENT_WORKSPACE': in_environment, 'STATE_DIRECTORY': state_directory}
        if how == 'environment' and text is not None:
            environ['TRADING_AGENT_CONFIG'] = str(file)
        present = {name: value for name, value in environ.items() if value is not None}
        assert workspace.chosen_workspace(option, named, present) == config.load(option, named, present).workspace


def test_the_places_and_the_default_are_those_of_run() -> None:
    """What the client takes for the usual files and the usual workspace is what `run` takes."""
    assert workspace.CONFIG_PLACES == config.CONFIG_PLACES
    assert workspace.DEFAULT_WORKSPACE == settings.DEFAULT_WORKSPACE


def test_a_file_with_other_mistakes_still_tells_the_workspace(tmp_path: Path) -> None:
    """A daemon is found also after somebody has put a mistake into its file."""
    file = tmp_path / 'desk.toml'
    file.write_text('workspace = "var"\nnonsense = true\n')
    with pytest.raises(ConfigurationError):
        config.load(file, None, {})
    assert workspace.chosen_workspace(file, None, {}) == tmp_path / 'var'


@pytest.mark.parametrize(
    ('content', 'told'), [(None, 'cannot be read'), (b'workspace', 'is not TOML'), (b'\xff', 'is not TOML')]
)
def test_a_file_that_says_nothing_is_told(tmp_path: Path, content: bytes | None, told: str) -> None:
    """A file that is missing, is no TOML or no text is a configuration error that names it."""
    file = tmp_path / 'desk.toml'
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f'desk.toml: {told}'):
        workspace.chosen_workspace(file, None, {})


def test_a_usual_place_that_cannot_be_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in a usual place that cannot be reached is an error, as it is for `run`, and not overlooked."""
    loop = tmp_path / 'trading-agent.toml'
    loop.symlink_to(loop)
    for module in (config, workspace):
        monkeypatch.setattr(module, 'CONFIG_PLACES', (loop,))
    with pytest.raises(ConfigurationError, match='cannot be read'):
        config.load(None, None, {})
    with pytest.raises(ConfigurationError, match='cannot be read'):
        workspace.chosen_workspace(None, None, {})


@pytest.mark.parametrize('spoilt', ['bad = [', '[[desks]\nname = "main"', 'x = \ufffd'])
def test_a_file_that_is_no_toml_any_more_still_tells_the_workspace(tmp_path: Path, spoilt: str) -> None:
    """A daemon is found also after somebody has made its file unreadable: `reload` has to say what is wrong."""
    file = tmp_path / 'desk.toml'
    file.write_text(f'log_level = "info"\nworkspace = "var"\n{spoilt}\n')
    assert workspace.chosen_workspace(file, None, {}) == tmp_path / 'var'
    file.write_text(f'{spoilt}\n')
    with pytest.raises(ConfigurationError):
        workspace.chosen_workspace(file, None, {})
