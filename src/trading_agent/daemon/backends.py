"""Makes the turn runners that the configuration names."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator

from trading_agent import config
from trading_agent.credentials import secrets_in, with_secrets, without_secrets
from trading_agent.errors import BackendError, ConfigurationError, Problem, TradingAgentError, TurnRefused
from trading_agent.plug_in import imported
from trading_agent.routing.offline import OfflineRunner
from trading_agent.routing.turn_runner import Turn, TurnEvent, TurnRunner


def make_runner(name: str, backend: config.Backend, where: str) -> TurnRunner:
    """Returns a new runner of a backend; each desk has its own.

    Args:
        name: The backend's configured name.
        backend: Its configuration.
        where: The configuration file, for errors.

    Raises:
        ConfigurationError: Its kind cannot be imported, does not take its options, or a secret is missing.
    """
    place = f'{where}: backends.{name}'
    if backend.kind == 'offline':
        return OfflineRunner(name, config.offline_options(backend, where))
    options = with_secrets(backend.options, place)
    secrets = secrets_in(options)
    failure: Exception | SystemExit
    try:
        made = imported(backend.kind)(name, options)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - other people's code
        failure = error
    else:
        if not callable(getattr(made, 'run', None)):
            raise ConfigurationError([_no_runner(backend.kind, place, made)])
        runner: TurnRunner = made
        return _Discreet(runner, secrets) if secrets else runner
    what = f'{backend.kind!r} cannot be used: {type(failure).__name__}: {without_secrets(str(failure), secrets)}'
    hint = 'is its package installed in this environment, and does it take these options?'
    # Where there are secrets, the cause may show one to whoever prints it.
    raise ConfigurationError([Problem(f'{place}.kind', what, hint)]) from (None if secrets else failure)


def _no_runner(kind: str, place: str, made: object) -> Problem:
    if inspect.iscoroutine(made):
        made.close()
    return Problem(
        f'{place}.kind', f'{kind!r} made a {type(made).__name__}, which has no run(turn)', 'return a TurnRunner'
    )


class _Discreet:
    """Keeps the secrets of a plug-in out of what is told of its failures."""

    def __init__(self, runner: TurnRunner, secrets: set[str]) -> None:
        self._runner = runner
        self._secrets = secrets

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        told: TradingAgentError
        stream = self._runner.run(turn)
        try:
            async for event in stream:
                yield event
        except Exception as error:
            shown = self._shown(error)
            if shown is None:
                raise
            told = shown
        else:
            return
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        raise told  # here, where the error that shows a secret is no longer its context

    def _shown(self, error: Exception) -> TradingAgentError | None:
        """Returns an error to be told in the place of one that shows a secret, or None where it shows none."""
        hint = error.hint if isinstance(error, TradingAgentError) else ''
        told = without_secrets(str(error), self._secrets)
        if told == str(error) and without_secrets(hint, self._secrets) == hint:
            return None
        if isinstance(error, TurnRefused):
            return TurnRefused(told, without_secrets(hint, self._secrets))
        if isinstance(error, BackendError):
            return BackendError(told, without_secrets(hint, self._secrets))
        return BackendError(f'{type(error).__name__}: {told}', without_secrets(hint, self._secrets))
