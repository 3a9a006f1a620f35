"""The MCP servers of a desk as they are configured, and what can be wrong with that."""

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from trading_agent.credentials import Secret, secrets_in, with_secrets
from trading_agent.errors import ConfigurationError, Problem
from trading_agent.settings import McpServer

SERVER_NAME = re.compile(r'(?=.{1,24}\Z)[a-z0-9]+(?:[_-][a-z0-9]+)*')
"""Without two underscores in a row and none at its end, so that `server__tool` names one tool and no other."""


class ServerSecrets(msgspec.Struct, frozen=True):
    """What a server is given, with the secrets that its configuration names.

    Attributes:
        env: Its environment besides PATH, HOME and LANG.
        headers: The HTTP headers.
        secrets: The secrets among them, to be kept out of what is told.
    """

    env: dict[str, str]
    headers: dict[str, str]
    secrets: frozenset[str]


def server_secrets(server: McpServer, place: str, environ: Mapping[str, str] | None = None) -> ServerSecrets:
    """Returns what a server is given.

    Args:
        server: Its configuration.
        place: Where that stands, for errors.
        environ: The environment; None for the process's own.

    Raises:
        ConfigurationError: A secret that is named is missing; all that are, are told.
    """
    problems: list[Problem] = []
    found: list[dict[str, str]] = []
    for where, table in zip((f'{place}.env', f'{place}.headers', place), server.secret_tables, strict=True):
        try:
            found.append(_filled(table, where, environ))
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    env, headers, key = found
    if 'api_key' in key:
        headers['Authorization'] = f'Bearer {key["api_key"]}'
    secrets = frozenset().union(*(secrets_in(options, environ) for options in server.secret_tables))
    return ServerSecrets({name: str(value) for name, value in env.items()}, headers, secrets)


def server_problems(servers: Sequence[McpServer], place: str) -> Iterator[Problem]:
    """Yields what is wrong with a desk's servers, besides ranges.

    Args:
        servers: As configured.
        place: Where they stand, such as `trading-agent.toml: desks[0]`.
    """
    names: set[str] = set()
    for number, server in enumerate(servers):
        where = f'{place}.mcp_servers[{number}]'
        if not SERVER_NAME.fullmatch(server.name):
            hint = 'a-z and 0-9, with single _ and - between them, at most 24'
            yield Problem(f'{where}.name', f'{server.name!r} is no name', hint)
        if server.name in names:
            yield Problem(f'{where}.name', f'a second server is named {server.name!r}', 'give it another name')
        names.add(server.name)
        if bool(server.command) == (server.url is not None):
            what = 'has a command and a url' if server.command else 'has neither command nor url'
            yield Problem(where, what, 'give it one of the two')
        elif server.command:
            yield from _command_problems(server, where)
        else:
            yield from _url_problems(server, where)


def _command_problems(server: McpServer, where: str) -> Iterator[Problem]:
    if not server.command[0] or any('\0' in part for part in server.command):
        yield Problem(f'{where}.command', 'names no program', 'write ["program", "argument"]')
    for key in server.env:
        if not key or '=' in key or '\0' in key:
            yield Problem(f'{where}.env', f'{key!r} is no name of a variable')
    if server.headers or server.api_key_env or server.api_key_credential:
        yield Problem(where, 'headers and api_key are for a url', 'a command is given its secrets by env')


def _url_problems(server: McpServer, where: str) -> Iterator[Problem]:
    try:
        address = urlsplit(server.url or '')
        fine = address.scheme in ('http', 'https') and bool(address.hostname)
    except ValueError:
        fine = False
    if not fine:
        yield Problem(f'{where}.url', 'is no address', 'write http://host:port/path or https://…')
    elif address.username or address.password:
        yield Problem(f'{where}.url', 'has a password in it', 'name it by api_key_env or in headers')
    if server.env:
        yield Problem(f'{where}.env', 'is for a command', 'remove it')
    if server.api_key_env and server.api_key_credential:
        yield Problem(f'{where}.api_key_env', 'api_key is given twice', 'remove one of the two')
    for name, value in server.headers.items():
        if not re.fullmatch(r'[!#$%&\'*+.^_`|~0-9A-Za-z-]+', name) or re.search(r'[\r\n\0]', value):
            yield Problem(f'{where}.headers', f'{name!r} is no header')


def _filled(table: Mapping[str, str], place: str, environ: Mapping[str, str] | None) -> dict[str, str]:
    """Returns a table with its secrets, and without the keys that name them."""
    filled = with_secrets(table, place, environ)
    named = {name for name, value in filled.items() if isinstance(value, Secret)}
    return {
        key: value
        for key, value in filled.items()
        if not (key in table and any(key == name + ending for name in named for ending in ('_env', '_credential')))
    }
