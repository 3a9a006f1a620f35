"""What went wrong in a turn of the `claude` command, by what is to be done about it."""

import time

from trading_agent.errors import (
    BackendBusy,
    BackendDown,
    BackendError,
    ContextTooSmall,
    LostSession,
    TradingAgentError,
    TurnRefused,
)
from trading_agent.routing.claude_stream import ClaudeStream, Result
from trading_agent.routing.guarded_process import Ending
from trading_agent.routing.process_guard import MISSING, NOT_RUNNABLE

OLDEST = (2, 1, 248)
"""The first version that takes a prompt as it is, without reading the files that it mentions or running commands."""

_MOST_CHARACTERS = 600
_LOST = ('no conversation found', 'no message found with', 'requires a valid session id')
_LIMIT_HINT = 'the subscription has used up what it may: wait, or let a desk have another backend too'
_LOGIN_HINT = 'look at api_key_env or api_key_credential of this backend, and at the account behind it'
_OLD_HINT = f'install version {".".join(map(str, OLDEST))} of Claude Code or a newer one'


def too_old(version: str) -> BackendDown | None:
    """Returns what is wrong with a version of the command, such as `2.1.332`; None where nothing is."""
    numbers = tuple(int(part) for part in version.split('.')[:3] if part.isdigit())
    return BackendDown(f'this is version {version} of the command', _OLD_HINT) if numbers < OLDEST else None


def failure_of(stream: ClaudeStream, ending: Ending) -> TradingAgentError | None:
    """Returns why a turn that has come to its end brought no answer; None where it brought one."""
    result = stream.result
    if result is None:
        return _without_a_result(stream, ending)
    if result.is_error:
        told = _told(result.text or result.kind, ending)
        return _refused_by_the_command(result, told) or _refused_by_the_api(stream, result, told)
    return None


def _without_a_result(stream: ClaudeStream, ending: Ending) -> TradingAgentError:
    if ending.status == MISSING:
        return BackendDown(_told('it is missing', ending), 'install Claude Code, or name its path with `command`')
    if ending.status == NOT_RUNNABLE:
        return BackendDown(_told('it cannot be run', ending), 'is `command` the program, and may this user run it?')
    words = ending.last_words.lower()
    if any(mark in words for mark in _LOST):
        return LostSession(_told('it does not know the session any more', ending))
    if 'unknown option' in words:
        return BackendDown(_told('it does not know an option', ending), _OLD_HINT)
    how = f'signal {ending.status - 128} ended it' if ending.status > 128 else f'it ended with status {ending.status}'
    if stream.version or ending.status in (0, 128 + 9):  # it had started; a kernel short of memory says signal 9
        return BackendBusy(_told(f'{how} before it had answered', ending))
    return BackendDown(_told(f'{how} before it had started', ending), 'run it by hand, as the user of the daemon')


def _refused_by_the_command(result: Result, told: str) -> TradingAgentError | None:
    text = result.text.lower()
    if any(mark in text for mark in _LOST):
        return LostSession(told)
    if result.stop_reason == 'refusal':
        return TurnRefused(told, 'the model refuses to answer this')
    is_long = 'prompt_too_long' in result.kind or 'prompt is too long' in text
    if is_long or result.status == 413 or result.stop_reason == 'model_context_window_exceeded':
        return ContextTooSmall(told)
    if 'model_not_found' in result.kind:
        return BackendDown(told, 'look at `model` of this backend')
    if any(kind in result.kind for kind in ('authentication', 'billing', 'permission')) or '/login' in text:
        return BackendDown(told, _LOGIN_HINT)
    return None


def _refused_by_the_api(stream: ClaudeStream, result: Result, told: str) -> TradingAgentError:
    if stream.limited_until is not None:
        return BackendDown(told, _LIMIT_HINT, max(0.0, stream.limited_until - time.time()))
    if result.status == 429 or 'rate_limit' in result.kind:
        is_used_up = 'hit your' in result.text or 'usage limit' in result.text
        return BackendDown(told, _LIMIT_HINT) if is_used_up else BackendBusy(told)
    if result.status == 529 or 'overloaded' in result.kind or result.status in (502, 503, 504):
        return BackendDown(told)
    if 'connection_failed' in result.kind:
        return BackendBusy(told) if stream.has_begun else BackendDown(told, 'look at `base_url` and the network')
    is_theirs = result.status >= 500 if result.status else 'api_error' in result.kind
    return BackendBusy(told) if is_theirs else BackendError(told)


def _told(what: str, ending: Ending) -> str:
    """Returns what went wrong in a line, with the end of what the command said on stderr."""
    words = ' '.join(ending.last_words.split())
    what = ' '.join(what.split())[:_MOST_CHARACTERS]
    return f'{what} ({words[-_MOST_CHARACTERS:]})' if words and words not in what else what
