"""The options that every command takes, before or after its name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar('F', bound=Callable[..., Any])


@dataclass
class Options:
    """What was asked for beside the command.

    Attributes:
        config: The configuration file that was named, or None.
        workspace: The workspace that was named, or None.
        json: Whether the result is JSON on stdout, for programs.
    """

    config: Path | None = None
    workspace: Path | None = None
    json: bool = False


pass_options = click.make_pass_decorator(Options, ensure=True)
"""Hands the `Options` to a command as its first argument."""


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    # The group is read before its command, so the one that is written later wins.
    if value:
        setattr(context.ensure_object(Options), str(parameter.name), value)


def global_options(command: F) -> F:
    """Lets a command, or the group, take the options; `pass_options` hands them over."""
    path = click.Path(path_type=Path)
    for option in (
        click.option('--json', is_flag=True, expose_value=False, callback=_remember, help='Answer in JSON.'),
        click.option(
            '--workspace', type=path, metavar='DIR', expose_value=False, callback=_remember, help='The workspace.'
        ),
        click.option(
            '--config', type=path, metavar='FILE', expose_value=False, callback=_remember, help='The configuration.'
        ),
    ):
        command = option(command)
    return command
