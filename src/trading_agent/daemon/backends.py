"""Makes the turn runners that the configuration names."""

import copy
import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path

from trading_agent import config
from trading_agent.credentials import secrets_in, with_secrets, without_secrets
from trading_agent.errors import BackendError, ConfigurationError, Problem, TradingAgentError, TurnRefused
from trading_agent.plug_in import imported
from trading_agent.providers.offline import OfflineProvider
from trading_agent.providers.provider import Provider
from trading_agent.routing.backend import CallLimits
from trading_agent.routing.provider_runner import ANSWER_TOKENS, ModelSettings, ProviderRunner
from trading_agent.routing.turn_runner import Turn, TurnEvent, TurnRunner

CLAUDE_CODE_TOKENS = 200_000
"""How many tokens the command's models take at least."""


def make_runner(name: str, backend: config.Backend, where: str, folder: Path = Path()) -> TurnRunner:
    """Returns a new runner of a backend; each desk has its own.

    Args:
        name: The backend's configured name.
        backend: Its configuration.
        where: The configuration file, for errors.
        folder: The desk's folder; any where it is only checked.

    Raises:
        ConfigurationError: Its kind cannot be imported, does not take its options, or a secret is missing.
    """
    place = f'{where}: backends.{name}'
    match config.options_of(backend, where):
        case config.OfflineOptions() as offline:
            return ProviderRunner(OfflineProvider(offline, name))
        case config.ModelOptions() as model:
            return _model_runner(backend, model, place)
        case config.ClaudeCodeOptions() as options:
            return _claude_code_runner(name, backend, options, place, folder)
        case _:
            return _plugged_in(name, backend, place)


def limits_of(backend: config.Backend) -> CallLimits:
    """Returns what a backend may take; a plug-in and `offline` have no limits but those of a turn."""
    options = config.options_of(backend)
    if not isinstance(options, config.ModelOptions | config.ClaudeCodeOptions):
        return CallLimits()
    # A token is two characters of tables and figures; half of the context is left for the rest.
    context = options.context_tokens if isinstance(options, config.ModelOptions) else CLAUDE_CODE_TOKENS
    return CallLimits(
        options.first_token_timeout,
        options.between_tokens_timeout,
        daily_tokens=options.daily_token_budget,
        review_chars=context,
    )


def _model_runner(backend: config.Backend, options: config.ModelOptions, place: str) -> TurnRunner:
    key = str(with_secrets(backend.options, place).get('api_key', ''))
    most = options.max_tokens or None
    try:
        provider = _provider(backend.kind, options, key, most)
    except ConfigurationError as error:
        told = [Problem(f'{place}: {problem.where}', problem.what, problem.hint) for problem in error.problems]
        raise ConfigurationError(told) from None  # its cause may show the key
    settings = ModelSettings(options.context_tokens, most, options.temperature)
    runner = ProviderRunner(provider, options.model, settings)
    return _Discreet(runner, secrets_in(backend.options))


def _provider(kind: str, options: config.ModelOptions, key: str, most: int | None) -> Provider:
    if kind == 'anthropic':
        from trading_agent.providers.anthropic import AnthropicProvider

        return AnthropicProvider(options.model, key, options.base_url, most or ANSWER_TOKENS)
    from trading_agent.providers.openai_compatible import OpenAICompatibleProvider

    return OpenAICompatibleProvider(options.model, key, options.base_url, most)


def _claude_code_runner(
    name: str, backend: config.Backend, options: config.ClaudeCodeOptions, place: str, folder: Path
) -> TurnRunner:
    from trading_agent.routing.claude_code import ClaudeCodeRunner

    secrets = with_secrets(backend.options, place)
    runner = ClaudeCodeRunner(
        name,
        folder=folder,
        command=options.command,
        model=options.model,
        api_key=str(secrets.get('api_key', '')),
        oauth_token=str(secrets.get('oauth_token', '')),
        base_url=options.base_url,
        home=Path(options.home) if options.home else None,
        allowed_tools=options.allowed_tools,
        permission_mode=options.permission_mode,
        mcp_config=Path(options.mcp_config) if options.mcp_config else None,
        environment=options.environment,
        catch_up_budget=options.catch_up_budget,
    )
    return _Discreet(runner, secrets_in(backend.options), acts_by_itself=runner.acts_by_itself)


def _plugged_in(name: str, backend: config.Backend, place: str) -> TurnRunner:
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
        acts = bool(getattr(made, 'acts_by_itself', False))
        return _Discreet(runner, secrets, acts_by_itself=acts) if secrets else runner
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

    def __init__(self, runner: TurnRunner, secrets: set[str], *, acts_by_itself: bool = False) -> None:
        self._runner = runner
        self._secrets = secrets
        self.acts_by_itself = acts_by_itself

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
        if isinstance(error, TurnRefused | BackendError):
            with suppress(TypeError):  # one whose class takes something else
                shown = copy.copy(error)  # what it means for who is asked next stays the same
                shown.args, shown.hint = (told,), without_secrets(hint, self._secrets)
                return shown
        return BackendError(f'{type(error).__name__}: {told}', without_secrets(hint, self._secrets))
