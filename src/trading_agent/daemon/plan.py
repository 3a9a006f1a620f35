"""What a configuration comes to: runners and components made, before anything that runs is touched."""

from contextlib import suppress
from dataclasses import dataclass

from trading_agent.config import Backend, Config
from trading_agent.config import Component as ComponentSettings
from trading_agent.config import Desk as DeskSettings
from trading_agent.daemon.backends import limits_of, make_runner
from trading_agent.daemon.components import Component, import_component
from trading_agent.errors import ConfigurationError, Problem
from trading_agent.plug_in import NAME as PLUG_IN
from trading_agent.plug_in import imported
from trading_agent.routing.backend import CallLimits
from trading_agent.routing.turn_runner import TurnRunner
from trading_agent.tools.mcp_servers import McpServers
from trading_agent.tools.server_settings import server_problems


@dataclass(frozen=True)
class DeskPlan:
    """One desk as configured.

    Attributes:
        settings: Its table.
        backends: Each of its backends as configured, in order of preference.
        runners: Each backend's name, runner and limits; a desk has runners of its own.
    """

    settings: DeskSettings
    backends: tuple[Backend, ...]
    runners: tuple[tuple[str, TurnRunner, CallLimits], ...]


@dataclass(frozen=True)
class Plan:
    """A configuration that can be put in force.

    Attributes:
        config: The configuration.
        desks: Each desk by its name.
        components: Each component's settings and callable by its name.
    """

    config: Config
    desks: dict[str, DeskPlan]
    components: dict[str, tuple[ComponentSettings, Component]]


@dataclass(frozen=True)
class Difference:
    """What a new plan changes, each thing in words such as `desk main`."""

    added: list[str]
    changed: list[str]
    removed: list[str]


def make_plan(wanted: Config, previous: Plan | None = None) -> Plan:
    """Makes a plan; what has not changed since the previous one is taken from it.

    Raises:
        ConfigurationError: A backend or a component cannot be made, or a key was changed that needs a restart.
    """
    if previous is not None:
        _refuse_what_needs_a_restart(previous.config, wanted)
    where = str(wanted.file or 'configuration')
    desks = {desk.name: _plan_desk(desk, wanted, previous, where) for desk in wanted.desks}
    components = {component.name: (component, import_component(component, where)) for component in wanted.components}
    return Plan(wanted, desks, components)


def import_ahead(wanted: Config) -> None:
    """Imports what a plan will need. It may take seconds, so call it in a thread; what fails is told by the plan."""
    kinds = {wanted.backends[name].kind for desk in wanted.desks for name in desk.backends}
    for name in sorted(kinds | {component.entry for component in wanted.components}):
        if PLUG_IN.fullmatch(name):
            with suppress(Exception):
                imported(name)


def _plan_desk(settings: DeskSettings, wanted: Config, previous: Plan | None, where: str) -> DeskPlan:
    backends = tuple(wanted.backends[name] for name in settings.backends)
    before = previous.desks.get(settings.name) if previous is not None else None
    if before is not None and (before.settings, before.backends) == (settings, backends):
        return before
    problems = list(server_problems(settings.mcp_servers, f'{where}: desk {settings.name!r}'))
    if problems:
        raise ConfigurationError(problems)
    McpServers(settings.name, settings.mcp_servers, where=where)  # told now, and not when the desk starts
    folder = wanted.workspace.absolute() / 'desks' / settings.name
    runners = tuple(
        (name, make_runner(name, backend, where, folder), limits_of(backend))
        for name, backend in zip(settings.backends, backends, strict=True)
    )
    return DeskPlan(settings, backends, runners)


def _refuse_what_needs_a_restart(running: Config, wanted: Config) -> None:
    where = wanted.file or 'configuration'
    problems = [
        Problem(f'{where}: {key}', 'cannot be changed while the daemon runs', 'set it back, or restart')
        for key in ('workspace', 'control_group')
        if getattr(running, key) != getattr(wanted, key)
    ]
    if problems:
        raise ConfigurationError(problems)


def difference(running: Plan, wanted: Plan) -> Difference:
    """Returns what a plan changes."""
    before = {**_named('desk', running.desks), **_named('component', running.components), **_keys(running)}
    after = {**_named('desk', wanted.desks), **_named('component', wanted.components), **_keys(wanted)}
    return Difference(
        added=[name for name in after if name not in before],
        changed=[name for name in after if name in before and after[name] != before[name]],
        removed=[name for name in before if name not in after],
    )


def _named(
    kind: str, things: dict[str, DeskPlan] | dict[str, tuple[ComponentSettings, Component]]
) -> dict[str, object]:
    return {f'{kind} {name}': _settings_of(thing) for name, thing in things.items()}


def _settings_of(thing: object) -> object:
    return (thing.settings, thing.backends) if isinstance(thing, DeskPlan) else thing


def _keys(plan: Plan) -> dict[str, object]:
    apart = ('backends', 'desks', 'components', 'file', 'workspace', 'control_group')
    return {key: getattr(plan.config, key) for key in plan.config.__struct_fields__ if key not in apart}
