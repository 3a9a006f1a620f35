"""What people may ask of the backends of a running daemon, by the control socket."""

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from trading_agent import config, files
from trading_agent.clock import Clock
from trading_agent.daemon.backend_status import BackendReport, BackendsReport, BackendSwitch, BackendTest, BackendUse
from trading_agent.daemon.backend_trial import BackendTrials
from trading_agent.daemon.backends import limits_of, make_runner
from trading_agent.daemon.desk import Desk
from trading_agent.daemon.disabled_backends import Disabled, DisabledFile
from trading_agent.daemon.status import BACKEND_STATES
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable, StorageError, TradingAgentError
from trading_agent.event_bus import EventBus
from trading_agent.events import BackendDisabled, BackendEnabled, BackendTested, StoreDamaged, WriteFailed
from trading_agent.memory.exchange import Exchange
from trading_agent.messages import Usage
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.routing.context import tokens_in
from trading_agent.routing.turn_runner import TurnRunner
from trading_agent.trigger import storable

_BUILT_IN = config.Backend(kind='offline')
"""The backend `offline`, which is there without being declared."""


class BackendOperations:
    """Fulfils the control socket's port to the backends, and keeps how each of them is.

    Args:
        configuration: Returns the configuration in force.
        desks: Returns the desks by their name.
        bus: Where events go.
        clock: What time it is.
        disk: Where file work is done.

    Attributes:
        healths: How each backend is, by its name.
    """

    def __init__(
        self,
        configuration: Callable[[], config.Config],
        desks: Callable[[], Mapping[str, Desk]],
        bus: EventBus,
        clock: Clock,
        disk: Disk,
    ) -> None:
        self._configuration = configuration
        self._desks = desks
        self._bus = bus
        self._clock = clock
        self._disk = disk
        self._file = DisabledFile(configuration().workspace.absolute())
        self._disabled: dict[str, Disabled] = {}
        self._switching = anyio.Lock()
        self._trials = BackendTrials(self._make, clock)
        self.healths: dict[str, BackendHealth] = {}

    def health(self, name: str) -> BackendHealth:
        """Returns how a backend is, which all its desks share."""
        if name not in self.healths:
            self.healths[name] = BackendHealth(name, self._bus.publish)
            self._put_in_force(self._disabled)
        return self.healths[name]

    async def load(self) -> None:
        """Reads which backends are out of use. What cannot be read is told, and nothing of it holds."""
        try:
            await self._disk.run(files.sweep, self._file.path.parent)
            self._put_in_force(await self._disk.run(self._file.read))
        except StorageError as error:
            self._bus.publish(WriteFailed.of(error))
        except TradingAgentError as error:
            path = storable(str(self._file.path))
            self._bus.publish(StoreDamaged(path=path, error=storable(str(error)), hint=error.hint))

    def _put_in_force(self, disabled: dict[str, Disabled]) -> None:
        self._disabled = disabled
        for name, health in self.healths.items():
            health.disabled = disabled[name].in_words(name) if name in disabled else ''

    def _make(self, name: str, backend: config.Backend) -> TurnRunner:
        configuration = self._configuration()
        folder = configuration.workspace.absolute() / '.backend-tests' / name  # no desk's: a test leaves nothing there
        return make_runner(name, backend, str(configuration.file or 'configuration'), folder)

    # -- what is told ------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Returns the names of the backends that are configured, and of those that are out of use."""
        return list(dict.fromkeys([*self._configuration().backends, *self._disabled]))

    async def report(self) -> BackendsReport:
        """Returns how the backends are. The built-in `offline` is left out where no desk uses it."""
        uses: dict[str, list[BackendUse]] = {}
        for desk in self._desks_in_order():
            for place, name in enumerate(desk.router.backends, 1):
                uses.setdefault(name, []).append(await self._use_of(desk, name, place))
        configured = self._configuration().backends
        shown = [name for name, backend in configured.items() if name in uses or backend != _BUILT_IN]
        return BackendsReport([self._report(name, configured[name], uses.get(name, [])) for name in shown])

    def _desks_in_order(self) -> list[Desk]:
        return [desk for desk in self._desks().values() if not desk.retiring]

    async def _use_of(self, desk: Desk, name: str, place: int) -> BackendUse:
        router, backend = desk.router, self._configuration().backends.get(name)
        route = router.routes.get(name)
        missed = router.exchanges[route.exchanges_seen if route else 0 :]
        used = router.usage.day_of_backend.get(name, Usage())
        return BackendUse(
            desk=desk.name,
            place=place,
            usage=used,
            daily_token_budget=limits_of(backend).daily_tokens if backend else 0,
            exchanges_behind=len(missed),
            # In a thread, for a long session takes its time.
            tokens_behind=await anyio.to_thread.run_sync(_tokens_in, missed) if missed else 0,
        )

    def _report(self, name: str, backend: config.Backend, uses: list[BackendUse]) -> BackendReport:
        health, model = self.health(name), backend.options.get('model')
        return BackendReport(
            name=name,
            kind=backend.kind,
            model=model if isinstance(model, str) else None,
            state=BACKEND_STATES[health.state],
            failures=health.failures,
            error_type=health.error_type,
            error=health.error,
            hint=health.hint,
            retry_after_ms=round(health.cools_for * 1000),
            disabled=self._disabled.get(name),
            desks=uses,
        )

    # -- what is done ------------------------------------------------------------------------------------------

    async def test(self, name: str, by: str) -> BackendTest:
        """Makes one tiny call of a backend, beside all desks; an answer ends a cool-down, and a failure begins one.

        Raises:
            DeskUnusable: It is no longer configured.
        """
        backend = self._configuration().backends.get(name)
        if backend is None:
            raise DeskUnusable(f'the backend {name!r} is not configured', 'add it to the configuration again')
        health = self.health(name)
        had_failed = bool(health.failures)
        result = await self._trials.run(name, backend, health)
        self._bus.publish(
            BackendTested(
                backend=name,
                by=storable(by),
                outcome='answered' if result.ok else 'failed',
                model=storable(result.model),
                duration_ms=result.duration_ms,
                first_output_ms=result.first_output_ms,
                input_tokens=result.usage.input_tokens,
                output_tokens=result.usage.output_tokens,
                cache_read_tokens=result.usage.cache_read_tokens,
                cache_write_tokens=result.usage.cache_write_tokens,
                error_type=result.error_type,
                error=storable(result.error),
                hint=storable(result.hint),
            )
        )
        if had_failed and result.ok:
            self._wake(name)
        return result

    async def disable(self, name: str, by: str, reason: str) -> BackendSwitch:
        """Takes a backend out of use, for every desk and over restarts; calls that run go on to their end.

        Raises:
            StorageError: It could not be written down; the backend stays in use.
            TradingAgentError: What is written there cannot be understood.
        """
        async with self._switching:
            before = self._disabled.get(name)
            if before is not None and not reason:
                reason = before.reason  # said again without a reason, the one that was given still holds
            disabled = Disabled(self._clock.now(), storable(by), storable(reason))
            await self._write({**self._disabled, name: disabled})
        waiting = self._desks_waiting(name)
        hint = f'`trading-agent backends enable {name}` takes it into use again'
        if waiting:
            hint += f'; until then the triggers of {", ".join(waiting)} wait: there is no other backend'
        told = BackendDisabled(backend=name, by=disabled.by, reason=disabled.reason, hint=storable(hint))
        self._bus.publish(told)
        return self._switched(name, changed=before is None)

    async def enable(self, name: str, by: str) -> BackendSwitch:
        """Takes a backend into use again; desks that wait for one go on at once.

        Raises:
            StorageError: It could not be written down; the backend stays out of use.
            TradingAgentError: What is written there cannot be understood.
        """
        async with self._switching:
            if name not in self._disabled:
                return self._switched(name, changed=False)
            await self._write({other: one for other, one in self._disabled.items() if other != name})
        self._bus.publish(BackendEnabled(backend=name, by=storable(by)))
        self._wake(name)
        return self._switched(name, changed=True)

    async def _write(self, disabled: dict[str, Disabled]) -> None:
        # Shielded by the disk: what is on it then also holds.
        await self._disk.run(self._file.write, disabled)
        self._put_in_force(disabled)

    def _switched(self, name: str, *, changed: bool) -> BackendSwitch:
        state = BACKEND_STATES[self.health(name).state]
        return BackendSwitch(name, changed, state, self._disabled.get(name), self._desks_waiting(name))

    def _users(self, name: str) -> list[Desk]:
        return [desk for desk in self._desks_in_order() if name in desk.router.backends]

    def _desks_waiting(self, name: str) -> list[str]:
        """Returns the desks that use a backend and have none left that is in use."""
        return [desk.name for desk in self._users(name) if all(one in self._disabled for one in desk.router.backends)]

    def _wake(self, name: str) -> None:
        for desk in self._users(name):
            desk.boundary()


def _tokens_in(exchanges: Sequence[Exchange]) -> int:
    return sum(tokens_in(exchange.trigger_text) + tokens_in(exchange.answer) for exchange in exchanges)
