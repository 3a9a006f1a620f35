"""The rooms of the house: who may import whom, how large a room may be, and that none keeps state of its own."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / 'src' / 'trading_agent'

LAYERS = [
    {'trigger', 'messages', 'turn_events', 'events', 'event_catalog', 'errors', 'units', 'settings'},
    {
        'beside',
        'clock',
        'disk',
        'files',
        'swap',
        'syncs',
        'json_lines',
        'event_bus',
        'config',
        'logs',
        'log_repeats',
        'systemd',
        'plug_in',
        'credentials',
    },
    {'memory', 'providers'},
    {'conversation', 'index', 'tools'},
    {'routing', 'audit'},
    {'daemon'},
    {'cli', 'web', 'testing'},
]
MODULES = sorted(SOURCE.rglob('*.py'))


def _name(path: Path) -> str:
    parts = list(path.relative_to(SOURCE).with_suffix('').parts)
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def _layer(name: str) -> int | None:
    """Returns a module's layer; None for the package itself and its entry."""
    room, _, _ = name.partition('.')
    return next((number for number, rooms in enumerate(LAYERS) if room in rooms), None)


def _imports(path: Path) -> set[str]:
    """Returns the modules of the package that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f'{node.module}.'.startswith('trading_agent.'):
            base = (node.module or '').removeprefix('trading_agent').strip('.')
            for alias in node.names:
                inner = f'{base}.{alias.name}'.strip('.')
                is_module = (SOURCE / (inner.replace('.', '/') + '.py')).exists() or (
                    SOURCE / inner.replace('.', '/') / '__init__.py'
                ).exists()
                found.add(inner if is_module else base)
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix('trading_agent.')
                for alias in node.names
                if alias.name.startswith('trading_agent.')
            }
    return found - {''}


GRAPH = {_name(path): _imports(path) for path in MODULES if _name(path) not in ('', '__main__')}


@pytest.mark.parametrize('name', GRAPH)
def test_imports_go_down(name: str) -> None:
    """A module imports only its own layer and those below it, and every module has a layer."""
    layer = _layer(name)
    assert layer is not None, f'{name} is in no layer of DESIGN'
    for imported in GRAPH[name]:
        below = _layer(imported)
        assert below is not None, imported
        assert below <= layer, f'{name} imports {imported}, which is above it'


def test_no_cycles() -> None:
    """No two modules need each other, directly or by way of others."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, ' -> '.join((*path, name))
        if name in done:
            return
        for imported in GRAPH.get(name, set()):
            visit(imported, (*path, name))
        done.add(name)

    for name in GRAPH:
        visit(name, ())


def test_peers_meet_at_their_contract() -> None:
    """Sources do not import each other, and only the daemon's builder knows a source, a turn runner or a provider."""
    for name, imported in GRAPH.items():
        for other in imported:
            if name.startswith('daemon.sources.'):
                assert not (other.startswith('daemon.sources.inbox') and 'inbox' not in name), (name, other)
                assert not (other.startswith('daemon.sources.control') and 'inbox' in name), (name, other)
            elif other.startswith('daemon.sources.'):
                assert name == 'daemon.daemon', (name, other)
            if other in ('routing.provider_runner', 'providers.offline'):
                assert name == 'daemon.backends', (name, other)


@pytest.mark.parametrize('path', MODULES, ids=_name)
def test_rooms_are_small_and_keep_no_state(path: Path) -> None:
    """No module is longer than 350 lines, no function than 60, and none has module-level mutable state."""
    text = path.read_text()
    assert text.count('\n') <= 350
    tree = ast.parse(text)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f'{path.name}:{node.lineno} a global'
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno
            assert length <= 60, f'{path.name}:{node.lineno} {node.name} has {length} lines'
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            mutable = isinstance(statement.value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)
            for target in targets:
                if isinstance(target, ast.Name) and mutable:
                    assert target.id.isupper() or target.id == '__all__', f'{path.name}: {target.id} can change'


@pytest.mark.parametrize('path', MODULES, ids=_name)
def test_no_vague_names(path: Path) -> None:
    """No module is called after nothing in particular."""
    assert not {'utils', 'helpers', 'common', 'misc', 'manager'} & set(_name(path).split('.'))
