"""Requests to a model API by its SDK, with their failures typed, whichever SDK it is."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from trading_agent.errors import BackendDown, TradingAgentError, TurnRefused
from trading_agent.providers.http_failures import HttpFailures, parameter_refused
from trading_agent.providers.sdk_clients import Client, SdkClients
from trading_agent.turn_events import TurnEvent

C = TypeVar('C', bound=Client)


class Reading(Protocol):
    """What reads the pieces of one answer."""

    def take(self, piece: object) -> Iterator[TurnEvent]:
        """Yields what a piece of the stream says."""
        ...

    def end(self) -> Iterator[TurnEvent]:
        """Yields what is left to say when the stream has ended."""
        ...


class Stream(Protocol):
    """What an SDK returns for a stream."""

    @property
    def response(self) -> Any:  # noqa: ANN401 - of the HTTP library
        """The response that it reads."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def __aiter__(self) -> AsyncIterator[Any]: ...


class SdkRequests(Generic[C]):
    """The requests of one provider. Several may run at once.

    Which optional parameters a server does not take is found out once, and remembered.

    Args:
        make: Makes a client; called in a thread.
        send: Sends a request by a client, and returns the SDK's stream.
        failures: Says what a failure means.
        optional: The parameters that a server may not know, each with the name of the one that it may know instead.
        in_doubt: The one that is left out where a request is refused without a word of what is to blame.
    """

    def __init__(
        self,
        make: Callable[[], C],
        send: Callable[[C, dict[str, Any]], Awaitable[Any]],
        failures: HttpFailures,
        optional: Mapping[str, str | None],
        in_doubt: str,
    ) -> None:
        self._clients = SdkClients(make)
        self._send = send
        self._failures = failures
        self._optional = optional
        self._in_doubt = in_doubt
        self._refused: frozenset[str] = frozenset()

    async def events(
        self, make_params: Callable[[], dict[str, Any]], reading: Reading, said: Iterable[str]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Sends a request and yields what comes.

        Args:
            make_params: Makes its parameters, as the SDK takes them; called when the SDK has been imported.
            reading: What reads the answer.
            said: The texts of the conversation, which no failure repeats.

        Raises:
            BackendError: It cannot be answered.
            TurnRefused: It was refused.
        """
        begun = False
        try:
            stream = await self._opened(await self._clients.get(), make_params())
            async with stream:
                async for piece in stream:
                    begun = True
                    for event in reading.take(piece):
                        yield event
            if not begun:
                self._failures.require_stream(stream.response.headers)
            for event in reading.end():
                yield event
        except TradingAgentError:
            raise
        except Exception as error:  # noqa: BLE001 - neither SDK wraps all that its HTTP library raises
            failure = self._failures.of(error, said, begun=begun)
        else:
            return
        raise failure  # here, where what may show a key is no longer its context

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        await self._clients.aclose()

    async def _opened(self, client: C, params: dict[str, Any]) -> Stream:
        """Sends a request; what the server refuses to know is left out and it is sent again, once for each."""
        found: set[str] = set()
        while True:
            refused = self._refused | found
            sent = self._accepted(params, refused)
            try:
                stream: Stream = await self._send(client, sent)
            except Exception as error:
                blamed = self._blamed(error, sent)
                if blamed is None or self._optional[blamed] in refused:
                    raise
                found.add(blamed)
            else:
                self._refused |= found
                return stream

    def _blamed(self, error: Exception, sent: dict[str, Any]) -> str | None:
        """Returns which parameter of a request is to blame for its failure, or None where none can be left out."""
        failure = self._failures.of(error)
        if not isinstance(failure, TurnRefused | BackendDown):
            return None
        blamed = parameter_refused(error, [name for name in self._optional if name in sent])
        in_doubt = isinstance(failure, TurnRefused) and self._in_doubt in sent
        return blamed or (self._in_doubt if in_doubt else None)

    def _accepted(self, params: dict[str, Any], refused: Iterable[str]) -> dict[str, Any]:
        accepted = dict(params)
        for name in refused:
            if name in accepted:
                value = accepted.pop(name)
                instead = self._optional[name]
                if instead is not None:
                    accepted[instead] = value
        return accepted
