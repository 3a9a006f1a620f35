"""Secrets: named in the configuration, held by the environment or by systemd, and never shown."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trading_agent.errors import ConfigurationError, Problem

_BY_VARIABLE = '_env'
_BY_CREDENTIAL = '_credential'
_SHORTEST = 6
"""In characters: what is shorter protects nothing, and would be found in the middle of every other word."""

_LONGEST_NAME = 40


class Secret(str):
    """A secret text. What shows an object for people shows that there is one, and not what it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('…')"


def with_secrets(options: Mapping[str, Any], place: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns options with the secrets that they name.

    `api_key_env = "NAME"` adds `api_key` from the environment variable NAME; `api_key_credential = "name"` from the
    file of that name in $CREDENTIALS_DIRECTORY (systemd.exec(5), LoadCredential=). Newlines at a file's end are
    dropped.

    Args:
        options: As configured.
        place: Where they stand, for errors.
        environ: The environment; None for the process's own.

    Raises:
        ConfigurationError: One that is named is missing; its name is told, never a value.
    """
    environ = os.environ if environ is None else environ
    found = dict(options)
    problems: list[Problem] = []
    for key, wanted, secret in _named(options, environ):
        if isinstance(secret, Problem):
            problems.append(Problem(f'{place}.{key}', secret.what, secret.hint))
        elif wanted in found:
            problems.append(Problem(f'{place}.{key}', f'{wanted} is given twice', 'remove one of the two'))
        else:
            found[wanted] = secret
    if problems:
        raise ConfigurationError(problems)
    return found


def secrets_in(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> set[str]:
    """Returns the secrets that options name, as far as they are there.

    Args:
        options: As configured, or with their secrets.
        environ: The environment; None for the process's own.
    """
    named = _named(options, os.environ if environ is None else environ)
    held = [value for value in options.values() if isinstance(value, Secret)]
    return {str(secret) for secret in [*held, *(found for _, _, found in named)] if isinstance(secret, Secret)}


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Returns a text in which an ellipsis stands for each secret of at least 6 characters."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, '…')
    return text


def _named(options: Mapping[str, Any], environ: Mapping[str, str]) -> Iterable[tuple[str, str, Secret | Problem]]:
    """Yields each key that names a secret, the key under which it is wanted, and the secret or why there is none."""
    for key, name in options.items():
        for ending, read in ((_BY_VARIABLE, _variable), (_BY_CREDENTIAL, _credential)):
            if len(key) > len(ending) and key.endswith(ending) and isinstance(name, str):
                yield key, key.removesuffix(ending), read(name, environ)


def _variable(name: str, environ: Mapping[str, str]) -> Secret | Problem:
    if environ.get(name):
        return Secret(environ[name])
    return Problem('', f'the environment variable {_shown(name)} is not set', 'set it where the daemon is started')


def _credential(name: str, environ: Mapping[str, str]) -> Secret | Problem:
    folder = environ.get('CREDENTIALS_DIRECTORY')
    if not folder or '/' in name or name in {'', '.', '..'}:
        return Problem('', f'there is no credential {_shown(name)}', 'name it in LoadCredential= of the unit')
    try:
        text = (Path(folder) / name).read_text(encoding='utf-8').rstrip('\r\n')
    except (OSError, ValueError):
        return Problem('', f'the credential {_shown(name)} cannot be read', 'name it in LoadCredential= of the unit')
    return Secret(text) if text else Problem('', f'the credential {_shown(name)} is empty', 'fill its file')


def _shown(name: str) -> str:
    """Returns the name of a secret, unless it looks like the secret itself, put there by mistake."""
    mixed = any(map(str.isupper, name)) and any(map(str.islower, name)) and any(map(str.isdigit, name))
    return '(which looks like a secret and not like the name of one)' if mixed or len(name) > _LONGEST_NAME else name
