"""Commands that are about one desk's things: `memory DESK` shows them, `memory diff DESK SESSION` does more."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from trading_agent.cli.main import LazyGroup
from trading_agent.files import storage_errors


class DeskGroup(LazyGroup):
    """A group whose first command is meant where only a desk is named; the desk may stand before a command, too."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command."""
        commands = self.list_commands(ctx)
        if args and args[0] not in commands and not args[0].startswith('-'):
            if len(args) > 1 and args[1] in commands:
                args = [args[1], args[0], *args[2:]]
            elif len(args) == 1 or args[1].startswith('-'):
                args = [commands[0], *args]
        return super().resolve_command(ctx, args)


@contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Lets root write within the block as the one whom a folder belongs to, so that the daemon can read it.

    Anyone else is who they are.

    Raises:
        StorageError: The folder cannot be seen.
    """
    with storage_errors('look at', folder):
        owner = folder.stat()
    if os.geteuid() or not owner.st_uid:
        yield
        return
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
