"""What a failure of a model API means: ask again, ask another, or give the turn up.

The official SDKs are made alike, and so are the HTTP libraries below them: their errors are told apart by the names
of their classes and by their fields, so that no SDK has to be imported for it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trading_agent.credentials import without_secrets
from trading_agent.errors import BackendBusy, BackendDown, BackendError, ContextTooSmall, TradingAgentError, TurnRefused
from trading_agent.providers.retry_after import retry_after
from trading_agent.trigger import storable

_LONGEST = 300  # characters
_ECHO = 24  # characters: what is shorter may well be the same by chance

_CONTEXT = re.compile(
    r'context.?(length|window|size|limit)|maximum context|model.?s context|maximum model length|max_new_tokens'
    r'|(prompt|input|request|conversation) is too (long|large)|request.?too.?large|too many (input )?tokens'
    r'|(reduce|shorten) the (length|number)|input token count|maximum number of (input )?tokens',
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r'request.?too.?large', re.IGNORECASE)
_POLICY = re.compile(
    r'content.?(policy|filter|management)|moderation|flagged|usage polic|responsible.?ai', re.IGNORECASE
)
_BILLING = re.compile(
    r'insufficient.?(quota|credit|balance|fund)|billing|credit balance|payment required', re.IGNORECASE
)

# How the APIs name a failure where there is no status: in the middle of a stream.
_STATUS_OF = {
    'invalid_request_error': 400,
    'badrequesterror': 400,
    'authentication_error': 401,
    'billing_error': 402,
    'permission_error': 403,
    'not_found_error': 404,
    'notfounderror': 404,
    'request_too_large': 413,
    'exceed_context_size_error': 413,
    'rate_limit_error': 429,
    'rate_limit_exceeded': 429,
    'too_many_requests': 429,
    'api_error': 500,
    'server_error': 500,
    'internal_error': 500,
    'internal_server_error': 500,
    'internalservererror': 500,
    'unavailable_error': 503,
    'timeout_error': 504,
    'overloaded_error': 529,
    'overloaded': 529,
}

_UNREACHED = {'ConnectError', 'ConnectTimeout', 'ProxyError', 'UnsupportedProtocol', 'InvalidURL', 'gaierror'}
_SLOW = {'TimeoutException', 'TimeoutError', 'APITimeoutError'}
_UNREADABLE = {
    'JSONDecodeError',
    'UnicodeDecodeError',
    'ValidationError',
    'DecodingError',
    'APIResponseValidationError',
}
_BROKEN = {
    'TransportError',
    'NetworkError',
    'ProtocolError',
    'StreamError',
    'APIConnectionError',
    'OSError',
    'EndOfStream',
    'BrokenResourceError',
    'ClosedResourceError',
}

_KEY_HINT = (
    'look at what api_key_env or api_key_credential of this backend names: it is wrong, or not allowed to do this'
)
_CONTEXT_HINT = 'lower context_tokens of this backend, or choose a model with a larger context'


@dataclass(frozen=True)
class _Told:
    """What a server said of its failure."""

    kind: str = ''
    code: str = ''
    message: str = ''

    @property
    def words(self) -> str:
        return f'{self.kind} {self.code} {self.message}'


class HttpFailures:
    """Says what the failures of one API mean. What it says never shows a key, or the conversation.

    Args:
        base_url: Where the API is.
        model: The model that is asked, for what the operator is told.
        secrets: What must not be shown, whoever says it.
    """

    def __init__(self, base_url: str, model: str, secrets: Iterable[str]) -> None:
        self._host = urlsplit(base_url).netloc.rpartition('@')[2]
        self._model = model
        self._secrets = set(secrets)

    def of(self, error: Exception, said: Iterable[str] = (), *, begun: bool = False) -> TradingAgentError:
        """Returns the error by which the router knows what to do next.

        Args:
            error: What the SDK, or the HTTP library below it, raised.
            said: The texts of the conversation, which a server may repeat in its complaint.
            begun: Whether the answer had begun.
        """
        status = getattr(error, 'status_code', None)
        body = getattr(error, 'body', None)
        if (isinstance(status, int) or body is not None) and type(error).__name__ not in _UNREADABLE:
            told = _told(body)
            status = status if isinstance(status, int) and status >= 300 else _status_of(told)
            headers = getattr(getattr(error, 'response', None), 'headers', {})
            return self._of_status(status, told, self._shown(told.message, said), retry_after(headers))
        names = _names(error)
        words = self._shown(_words_of(error), ())
        if names & _UNREACHED or (not begun and 'SSLError' in names):
            return BackendDown(
                f'{self._host} cannot be reached: {words}', 'look at base_url, the network and the certificates'
            )
        if names & _UNREADABLE:
            return BackendBusy(f'{self._host} answered what cannot be read: {words}')
        if names & _SLOW:
            return BackendBusy(f'{self._host} said nothing for too long')
        if names & _BROKEN:
            return BackendBusy(f'the connection to {self._host} broke: {words}')
        return BackendError(f'{type(error).__name__}: {words}')

    def require_stream(self, headers: Mapping[str, str]) -> None:
        """Sees to it that a response in which nothing came was a stream at all.

        Args:
            headers: The response's headers.

        Raises:
            BackendDown: It was something else, a web page for one.
        """
        kind = headers.get('content-type', '')
        if kind and not kind.startswith('text/event-stream'):
            what = f'{self._host} answered with {self._shown(kind, ())} and not with a stream'
            raise BackendDown(what, 'look at base_url: is there such an API?')

    def _of_status(self, status: int | None, told: _Told, message: str, seconds: float | None) -> TradingAgentError:
        kind = self._shown(told.kind or told.code, ())
        heading = ' '.join(filter(None, [f'{self._host} answered', str(status or 'with an error'), kind]))
        what = f'{heading}: {message}' if message else heading
        if status in (401, 403, 404):
            return self._shut_out(status, told, heading, what)
        # A rate limit speaks of tokens too; one that a single request exceeds is no matter of waiting.
        if status == 413 or (_TOO_LARGE if status == 429 else _CONTEXT).search(told.words):
            return ContextTooSmall(what, _CONTEXT_HINT)
        if status == 402 or _BILLING.search(told.words):
            return BackendDown(what, 'the account has no credit left: look at its billing', seconds)
        if status in (None, 408, 409, 425, 429):
            return BackendBusy(what, retry_after=seconds)
        if status in (400, 422):
            return TurnRefused(what)
        return BackendDown(what, 'look at base_url' if status < 500 else '', seconds)

    def _shut_out(self, status: int, told: _Told, heading: str, what: str) -> TradingAgentError:
        if status == 401:
            return BackendDown(heading, _KEY_HINT)  # what is said to a wrong key often shows some of it
        if status == 403:
            return TurnRefused(what) if _POLICY.search(told.words) else BackendDown(what, _KEY_HINT)
        return BackendDown(what, f'look at base_url, and whether there is a model {self._model!r}')

    def _shown(self, text: str, said: Iterable[str]) -> str:
        """Returns a text as it may be shown: in one line, not long, without keys and without the conversation."""
        text = ' '.join(storable(without_secrets(text, self._secrets)).split())
        for own in said:
            start = ' '.join(own[: 4 * _ECHO].split())[:_ECHO]
            if len(start) == _ECHO and start in text:
                return '(its words repeat the conversation, and are not shown)'
        return text if len(text) <= _LONGEST else f'{text[:_LONGEST]} …'


def parameter_refused(error: Exception, parameters: Iterable[str]) -> str | None:
    """Returns which of some parameters a server does not accept, or None where its complaint names none of them.

    Args:
        error: What the SDK raised.
        parameters: Their names.
    """
    if getattr(error, 'status_code', None) not in (400, 422, 500, 501):
        return None
    body = getattr(error, 'body', None)
    table = body.get('error', body) if isinstance(body, dict) else {}
    about = str(table.get('param') or '') if isinstance(table, dict) else ''
    for words in (about, str(body)):
        for name in parameters:
            if name in words:
                return name
    return None


def _told(body: object) -> _Told:
    """Returns what a body says, whichever way: `{"error": {…}}`, `{"error": "…"}`, `{"detail": […]}` or text."""
    inner: Any = body.get('error') or body if isinstance(body, dict) else body
    if isinstance(inner, dict):
        message = inner.get('message') or inner.get('detail') or ''
        return _Told(_text(inner.get('type')), _text(inner.get('code')), _sentence(message))
    return _Told(message=inner if isinstance(inner, str) else '')


def _sentence(message: object) -> str:
    if isinstance(message, list):  # a validator's: what was wrong is told, the input that it shows is not
        problems = [problem for problem in message if isinstance(problem, dict)]
        return '; '.join(f'{_place(problem)}: {_text(problem.get("msg"))}' for problem in problems)
    return _text(message)


def _place(problem: dict[str, Any]) -> str:
    steps = problem.get('loc')
    return '.'.join(map(_text, steps)) if isinstance(steps, list | tuple) else ''


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) else ''


def _status_of(told: _Told) -> int | None:
    if told.code.isdecimal() and 400 <= int(told.code[:4]) <= 599:
        return int(told.code)
    return _STATUS_OF.get(told.code.lower()) or _STATUS_OF.get(told.kind.lower())


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(12):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for cause in _chain(error) for kind in type(cause).__mro__}


def _words_of(error: BaseException) -> str:
    """Returns the words of what lies at the bottom of an error, which say most."""
    words = [f'{cause}' for cause in _chain(error)]
    return next(filter(None, reversed(words)), type(error).__name__)
