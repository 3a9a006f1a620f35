"""The clients of the official SDKs: made when they are needed first, one for each event loop, and closed with it.

An SDK is a heavy import, and it reads the environment for much that the configuration says already: both is kept
away from whoever has a provider.
"""

import asyncio
import importlib.util
import logging
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import anyio.to_thread

from trading_agent.errors import ConfigurationError, Problem

_LIBRARIES = ('anthropic', 'openai', 'httpx', 'httpx2', 'httpcore', 'httpcore2')


class Client(Protocol):
    """What is known of a client here."""

    async def close(self) -> None:
        """Closes its connections."""
        ...


C = TypeVar('C', bound=Client)


class SdkClients(Generic[C]):
    """The clients of one provider. Connections belong to the event loop that made them, so each loop has its own.

    Args:
        make: Makes a client. It is called in a thread, where it may import what it needs.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._kept: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None, None]]] = {}

    async def get(self) -> C:
        """Returns this loop's client. It is closed by `aclose`, or else when the loop ends."""
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            client = await anyio.to_thread.run_sync(self._made)
            if loop not in self._kept:  # or another turn was quicker
                lifetime = self._lifetime(loop, client)
                self._kept[loop] = client, lifetime
                await anext(lifetime)
        return self._kept[loop][0]

    async def aclose(self) -> None:
        """Closes this loop's client, where there is one. The next `get` makes a new one."""
        _, lifetime = self._kept.get(asyncio.get_running_loop(), (None, None))
        if lifetime is not None:
            await lifetime.aclose()

    def _made(self) -> C:
        client = self._make()
        for name in _LIBRARIES:
            # Below this level they log whole requests, and a variable of theirs turns that on.
            logging.getLogger(name).setLevel(logging.WARNING)
        return client

    async def _lifetime(self, loop: asyncio.AbstractEventLoop, client: C) -> AsyncGenerator[None, None]:
        # A loop that is shut down closes the generators that were begun in it, and this one the client.
        try:
            yield
        finally:
            self._kept.pop(loop, None)
            await client.close()


def require_package(name: str) -> None:
    """Sees to it that an SDK is installed, without importing it.

    Raises:
        ConfigurationError: It is not; the hint says what to install.
    """
    if importlib.util.find_spec(name) is None:
        hint = f"install this package with its extra {name!r}: pip install 'trading-agent[{name}]'"
        raise ConfigurationError([Problem(name, f'the package {name!r} is not installed', hint)])


def usable_key(key: str) -> str:
    """Returns a key as it is sent, without blanks around it.

    Raises:
        ConfigurationError: It cannot be a key. It is not shown.
    """
    stripped = str(key).strip()
    if not stripped.isascii() or not stripped.isprintable() or ' ' in stripped:
        hint = 'look at what api_key_env or api_key_credential names: is it the key, whole, and nothing else?'
        raise ConfigurationError([Problem('api_key', 'it holds characters that no key has', hint)])
    return stripped


def usable_url(url: str) -> str:
    """Returns a base URL.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ('http', 'https') and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        hint = 'write it like https://host/v1, or http://127.0.0.1:8080/v1 for a server on this machine'
        raise ConfigurationError([Problem('base_url', 'it is no URL of a server', hint)])
    return url


def own_headers(key: str, variable: str, omitted: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
    """Returns headers of a request that authorize it by the key alone, or by nothing where the key is empty.

    Args:
        key: The key.
        variable: The environment variable by which the SDK adds headers of its own to each request: they are omitted.
        omitted: What the SDK takes for a header that is to be left out.
    """
    names = [line.partition(':')[0].strip() for line in os.environ.get(variable, '').split('\n') if ':' in line]
    authorization = f'Bearer {key}' if key else omitted
    return {
        **{name: authorization if name.lower() == 'authorization' else omitted for name in names},
        'Authorization': authorization,
    }
