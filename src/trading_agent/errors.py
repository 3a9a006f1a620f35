"""Every error of the package, split by what the one who catches it does next.

An error carries its facts as fields, and a `hint`: what the operator can do about it.
"""

import errno as errno_names
import os
from dataclasses import dataclass
from pathlib import Path


class TradingAgentError(Exception):
    """The base of every error that this package raises on purpose.

    Attributes:
        hint: What to do about it, in words for the operator; may be empty.
    """

    def __init__(self, message: str, hint: str = '') -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def in_words(self) -> str:
        """What went wrong and what to do about it, in one line."""
        return f'{self}: {self.hint}' if self.hint else str(self)


class InvalidTrigger(TradingAgentError, ValueError):
    """Raised when a trigger's text, id or times can never be accepted."""


class InvalidSessionId(TradingAgentError, ValueError):
    """Raised when a session is to be written whose id is not like `2026-10-19-1`."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration: where (file and key), what, and how to mend it."""

    where: str
    what: str
    hint: str = ''

    def __str__(self) -> str:
        return f'{self.where}: {self.what}' + (f' ({self.hint})' if self.hint else '')


class ConfigurationError(TradingAgentError):
    """Raised when the configuration cannot be used. The process exits with 78."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__('; '.join(str(problem) for problem in problems))
        self.problems = problems


class WorkspaceLocked(TradingAgentError):
    """Raised when another daemon holds the workspace."""

    def __init__(self, workspace: Path, holder: str) -> None:
        super().__init__(
            f'the workspace {workspace} is held by {holder}',
            'stop that daemon first, or give this one another --workspace',
        )


class DaemonUnreachable(TradingAgentError):
    """Raised when no daemon answers a client. The process exits with 69."""

    def __init__(self, tried: list[str]) -> None:
        super().__init__(
            'no daemon answers; tried ' + ', '.join(tried),
            'start one with `trading-agent run`, or name its folder with --workspace',
        )


class StorageError(TradingAgentError, OSError):
    """Raised when a file could not be read, written or synced. Nothing was acknowledged: try again later.

    Attributes:
        operation: What was tried, such as `append`.
        path: The file or folder.
        errno: The system's error number.
    """

    def __init__(self, operation: str, path: Path, cause: OSError) -> None:
        number = cause.errno or errno_names.EIO
        message = f'could not {operation} {path}: {cause.strerror or os.strerror(number)}'
        TradingAgentError.__init__(self, message, _STORAGE_HINTS.get(number, 'check the disk and the permissions'))
        self.operation = operation
        self.path = path
        self.errno = number

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidInput(TradingAgentError, ValueError):
    """Raised when an agent, a session or a tool is given what it cannot use. Nothing was done."""


class SessionBusy(TradingAgentError, RuntimeError):
    """Raised when a session is asked or changed while a turn of it runs. Nothing was done."""


class LoopIsRunning(TradingAgentError, RuntimeError):
    """Raised when a method that blocks is called where an event loop runs: its counterpart is to be awaited."""


class StreamNotConsumed(TradingAgentError, RuntimeError):
    """Raised when the response of a stream is asked for before the stream has come to its end."""


class DeskUnusable(TradingAgentError):
    """Raised when a desk cannot work until a person has mended something: the desk is parked."""


class BackendError(TradingAgentError):
    """Raised when a backend could not answer a turn: the next backend is asked.

    A backend's runner raises it. Any other exception of a runner counts as one.
    """


class BackendBusy(BackendError):
    """Raised when a backend may answer if it is asked again after a moment: rate limited, or cut off on the way.

    Attributes:
        retry_after: After how many seconds, where the backend said so; else None.
    """

    def __init__(self, message: str, hint: str = '', retry_after: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class BackendDown(BackendError):
    """Raised when a backend will not answer for a while: overloaded, out of reach, or not let in.

    Attributes:
        retry_after: After how many seconds it may, where the backend said so; else None.
    """

    def __init__(self, message: str, hint: str = '', retry_after: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class ContextTooSmall(BackendError):
    """Raised when a backend cannot take so long a conversation. There is nothing wrong with the backend."""


class LostSession(BackendError):
    """Raised when a backend that keeps its own session no longer knows it: it is told the session anew."""


class TooManyRounds(BackendError):
    """Raised when a model asked for tools again and again, and never answered."""


class InvalidAnswer(BackendError):
    """Raised when an answer does not fulfil the schema that was asked for, also after one more try.

    Attributes:
        text: The answer.
        problem: What is wrong with it.
    """

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(problem)
        self.text = text
        self.problem = problem


class TurnRefused(TradingAgentError):
    """Raised when the request itself was refused, so that no backend could answer it: the turn fails."""


class NoBackend(TradingAgentError):
    """Raised when no backend of a desk could answer: the trigger waits.

    Attributes:
        failures: Each backend's name with what went wrong.
    """

    def __init__(self, failures: dict[str, str]) -> None:
        told = '; '.join(f'{name}: {what}' for name, what in failures.items()) or 'none is configured'
        super().__init__(
            f'no backend can answer ({told})',
            'the trigger waits and is tried again; mend a backend, or add one to the desk',
        )
        self.failures = failures


class NotJournaled(NoBackend):
    """Raised when a call with side effects was not made, since the journal could not be written: the trigger waits."""


class OutcomeUnknown(TradingAgentError):
    """Raised when a turn failed after calls that may have had effects: it is not run again.

    Attributes:
        calls: The calls that were made, in words.
    """

    def __init__(self, message: str, calls: list[str]) -> None:
        super().__init__(message, 'the desk is told which calls were made, and decides')
        self.calls = calls


_STORAGE_HINTS = {
    errno_names.ENOSPC: 'free some space: the desk goes on by itself',
    errno_names.EDQUOT: 'raise the quota or free some space: the desk goes on by itself',
    errno_names.EROFS: 'the file system is mounted read-only: look at the kernel log',
    errno_names.EIO: 'the disk reports errors: look at the kernel log, and make a backup',
    errno_names.EACCES: 'make the workspace belong to the user that the daemon runs as',
    errno_names.EPERM: 'make the workspace belong to the user that the daemon runs as',
    errno_names.EMFILE: 'raise the limit of open files (LimitNOFILE)',
    errno_names.ENFILE: 'raise the limit of open files of the machine (fs.file-max)',
    errno_names.ENOTDIR: 'a file stands where a folder should be: move it away',
    errno_names.EEXIST: 'a file stands where a folder should be: move it away',
    errno_names.EISDIR: 'a folder stands where a file should be: move it away',
}
