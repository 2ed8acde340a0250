"""The controller of one broker: feeds the machine with events, carries out its effects, and serves API handlers.

Owner: the event loop. This module is thin: `machine` makes the decisions.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from barnabas.base.chance import random_uuid
from barnabas.base.clock import Clock
from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.channel import BrokerChannel, Request
from barnabas.broker.controller.controller_watch import ControllerWatch
from barnabas.broker.controller.deferral import Deferral
from barnabas.broker.controller.effects import (
    CloseChannel,
    Effect,
    Elected,
    OpenChannel,
    Reply,
    Resigned,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    StartTimer,
    WatchController,
    ZkBatch,
)
from barnabas.broker.controller.events import (
    Abandon,
    AlterPartition,
    AnswerEvent,
    ApiEvent,
    BrokerRefuses,
    ControllerRefuses,
    ElectionType,
    ElectLeaders,
    Event,
    Failure,
    SessionExpired,
    SessionRenewed,
    SettingsChanged,
    Startup,
    Timer,
    TimerFired,
    UncleanElectionEnabled,
    ZkAnswered,
    ZkLost,
)
from barnabas.broker.controller.lifeline import Connect
from barnabas.broker.controller.machine import ControllerMachine
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.controller.topics import CreatedTopic, MorePartitions, NewTopic, Permit, TopicAdmin, TopicDefaults
from barnabas.broker.controller.wire import Translator
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.broker.zookeeper_client.operations import Exists, Get, GetChildren, Operation
from barnabas.broker.zookeeper_client.registration import BrokerRegistrar
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.session_batch import BatchAnswer
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired as SessionIsOver
from barnabas.broker.zookeeper_client.zk_errors import ZkError

R = TypeVar("R")

_log = logging.getLogger(__name__)


def _always(partitions: int) -> bool:
    """The permit of requests that have no quota."""
    return True


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    settings: ControllerSettings
    #: `control.plane.listener.name`, or `inter.broker.listener.name`: where the controller reaches brokers.
    control_listener: str
    #: `inter.broker.listener.name`: where followers reach leaders.
    inter_broker_listener: str
    #: `controller.socket.timeout.ms`
    request_timeout_ms: int = 30_000
    topic_defaults: TopicDefaults = field(default_factory=TopicDefaults)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Feeds an event to the controller when ZooKeeper reports a change. Equal for equal events of one controller."""

    controller: "Controller"
    event: Event

    def __call__(self, path: str) -> None:
        self.controller.happened(self.event)


class Controller:
    def __init__(
        self,
        session: ZooKeeperSession,
        registrar: BrokerRegistrar,
        config: ControllerConfig,
        *,
        clock: Clock,
        connect: Connect,
        metadata: MetadataCache,
        validate_topic_config: Callable[[Mapping[str, str]], None] = lambda _: None,
        new_topic_id: Callable[[], TopicId] = lambda: TopicId(random_uuid()),
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._session = session
        self._registrar = registrar
        self._config = config
        self._clock = clock
        self._connect = connect
        self._metadata = metadata
        self._machine = ControllerMachine(config.settings, new_topic_id=new_topic_id, now_ms=clock.now_ms)
        self._topics = TopicAdmin(
            session,
            self._machine,
            metadata,
            defaults=config.topic_defaults,
            choose=choose,
            new_topic_id=new_topic_id,
            validate_config=validate_topic_config,
        )
        self._translator = Translator(config.settings.broker_id, config.inter_broker_listener)
        self._channels: dict[int, tuple[BrokerChannel, asyncio.Task[None]]] = {}
        self._controller_watch = ControllerWatch(
            listener=config.control_listener,
            connect=connect,
            on_refused=lambda broker_id: self.happened(ControllerRefuses(broker_id)),
            keep=self._keep,
        )
        self._deferral = Deferral(
            lambda: all(channel.is_quiet or channel.is_suspect for channel, _ in self._channels.values())
        )
        #: Tasks that run until they end by themselves: closed channels, and the registration after a session's end.
        self._ending: set[asyncio.Task[None]] = set()
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._replies: dict[ApiEvent[Any], asyncio.Future[Any]] = {}
        self._leave_session: Callable[[], None] | None = None
        self._is_stopped = False
        #: Finishes with an exception when this broker cannot go on and has to stop.
        self.failed: asyncio.Future[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._machine.is_active

    @property
    def epoch(self) -> int:
        """The epoch of this broker's term as controller; 0 if it is not controller."""
        return self._machine.epoch

    @property
    def controller_id(self) -> int:
        """The id of the controller as ZooKeeper last reported it; -1 if there is no controller."""
        return self._machine.controller_id

    @property
    def machine(self) -> ControllerMachine:
        """The machine, for metrics. Callers must not change its `context`."""
        return self._machine

    async def start(self) -> None:
        """Watch /controller and race for it. The broker must be registered. Returns at once.

        If the session that registered the broker has ended already, register again: no callback reported that end.
        """
        self.failed = asyncio.get_running_loop().create_future()
        # Nothing has to await this future.
        self.failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._leave_session = self._session.on_state(self._session_changed)
        if self._registrar.is_of_this_session:
            self.feed(Startup())
        else:
            self._session_changed(SessionState.RENEWED)

    async def stop(self) -> None:
        """Drop all work. The next controller is elected when this broker's session ends."""
        self._is_stopped = True
        if self._leave_session is not None:
            self._leave_session()
        self._let_go()
        self._controller_watch.stop()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(Refused(ErrorCode.NOT_CONTROLLER))
        self._replies.clear()
        ending = list(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def change_settings(self, settings: ControllerSettings) -> None:
        """Take over dynamic settings. If `unclean.leader.election.enable` becomes true, it takes effect at once."""
        before, self._config = self._config.settings, replace(self._config, settings=settings)
        self.feed(SettingsChanged(settings))
        if settings.unclean_leader_election_enable and not before.unclean_leader_election_enable:
            self.feed(UncleanElectionEnabled())

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        """Apply `unclean.leader.election.enable` of a topic at once."""
        if topic and config.unclean_leader_election_enable:
            self.feed(UncleanElectionEnabled(topic))

    # --- events and effects -------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        if self._is_stopped:
            return
        try:
            effects = self._machine.handle(event)
        except Exception as error:
            # This is a bug, and the machine's state may be wrong. Resign: the next controller starts from ZooKeeper's state.
            _log.exception("[controller] failed at %s and resigns: please report this bug", type(event).__name__)
            self._carry_out(self._machine.salvage())
            if isinstance(event, Abandon):
                self._fail(error)
            else:
                self.feed(Abandon(f"{type(error).__name__}: {error}"))
            return
        self._carry_out(effects)
        self._topics.machine_changed()
        if self._machine.is_idle:
            self._deferral.rest()

    def happened(self, event: Event) -> None:
        """Feed an event that must not wait until slow brokers have answered.

        Changes of ISRs may wait: a broker that fails causes them.
        """
        must_wait = not self._machine.is_idle
        self.feed(event)
        if must_wait and not isinstance(event, AlterPartition):
            self._deferral.hurry()

    def _broker_answered(self, event: AnswerEvent) -> None:
        self.feed(event)
        self._deferral.look()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case ZkBatch(when_quiet=True):
                    self._deferral.await_quiet(partial(self._ask_zookeeper, effect))
                case ZkBatch():
                    self._ask_zookeeper(effect)
                case SendLeaderAndIsr(broker_id) | SendStopReplica(broker_id):
                    self._send(broker_id, effect)
                case SendUpdateMetadata(brokers):
                    for broker_id in brokers:
                        self._send(broker_id, effect)
                case OpenChannel():
                    self._open_channel(effect)
                case CloseChannel(broker_id):
                    self._close_channel(broker_id)
                case WatchController(broker):
                    self._controller_watch.watch(broker)
                case Reply(request, value):
                    future = self._replies.pop(request, None)
                    if future is not None and not future.done():
                        future.set_result(value)
                case StartTimer(timer, delay_ms):
                    self._start_timer(timer, delay_ms)
                case Resigned():
                    self._let_go()
                case Elected(epoch):
                    _log.info("[controller] elected with epoch %d", epoch)

    def _ask_zookeeper(self, batch: ZkBatch) -> None:
        operations = [self._with_watch(each) for each in batch.operations]
        future = self._session.begin_batch(operations, batch.guard)
        future.add_done_callback(lambda done: self._zookeeper_answered(batch.batch_id, done))

    def _with_watch(self, operation: Operation) -> Operation:
        if isinstance(operation, Get | Exists | GetChildren) and operation.watch is not None:
            return replace(operation, watch=_Watch(self, operation.watch))  # type: ignore[arg-type]
        return operation

    def _zookeeper_answered(self, batch_id: int, done: "asyncio.Future[BatchAnswer]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            answer = done.result()
            self.feed(ZkAnswered(batch_id, answer.results, answer.moved))
        elif isinstance(error, SessionIsOver):
            # Usually the controller knows this already, and no program waits for the answer any more.
            self.feed(ZkLost(batch_id))
        else:
            self._fail(error)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self.feed(SessionExpired())
        elif state is SessionState.RENEWED:
            self._keep(asyncio.get_running_loop().create_task(self._register_again(), name="broker-registration"))

    async def _register_again(self) -> None:
        try:
            await self._registrar.register()
        except SessionIsOver:
            # The new session has ended too: the next one tries again.
            return
        except Exception as error:
            _log.exception("[controller] the broker cannot register again in ZooKeeper and has to stop: restart it")
            self._fail(error)
            return
        self.feed(SessionRenewed())

    def _fail(self, error: BaseException) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)

    # --- channels and timers ------------------------------------------------------------------------------------------

    def _open_channel(self, effect: OpenChannel) -> None:
        broker = effect.broker
        endpoint = broker.endpoint(self._config.control_listener)
        open_now = self._channels.get(broker.id)
        life = (effect.broker_epoch, effect.is_suspect)
        if open_now is not None and endpoint is not None and open_now[0].life == life:
            open_now[0].move(endpoint)
            return
        self._close_channel(broker.id)
        if endpoint is None:
            _log.error(
                "[controller] broker %d has no listener %s, so it gets no requests: add the listener to its `listeners`",
                broker.id,
                self._config.control_listener,
            )
            return
        channel = BrokerChannel(
            broker.id,
            effect.broker_epoch,
            endpoint,
            controller_id=self._config.settings.broker_id,
            connect=self._connect,
            translator=self._translator,
            on_answer=self._broker_answered,
            is_suspect=effect.is_suspect,
            on_refused=partial(self.happened, BrokerRefuses(broker.id, effect.broker_epoch)),
            request_timeout_ms=self._config.request_timeout_ms,
        )
        task = asyncio.get_running_loop().create_task(channel.run(), name=f"controller-to-broker-{broker.id}")
        self._keep(task)
        self._channels[broker.id] = (channel, task)

    def _close_channel(self, broker_id: int) -> None:
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel[1].cancel()

    def _keep(self, task: "asyncio.Task[None]") -> None:
        """Hold a task until it has ended. A task that ends with an exception is a bug, and this broker has to stop."""
        self._ending.add(task)

        def ended(done: "asyncio.Task[None]") -> None:
            self._ending.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                _log.error(
                    "[controller] the task %s failed, and the broker has to stop: please report this bug",
                    done.get_name(),
                    exc_info=error,
                )
                self._fail(error)

        task.add_done_callback(ended)

    def _send(self, broker_id: int, request: Request) -> None:
        channel = self._channels.get(broker_id)
        if channel is None:
            _log.warning(
                "[controller] %s is not sent: there is no channel to broker %d; it gets the state when it registers again",
                type(request).__name__,
                broker_id,
            )
        else:
            channel[0].put(request)

    def _start_timer(self, timer: Timer, delay_ms: int) -> None:
        known = self._timers.pop(timer, None)
        if known is not None:
            known.cancel()
        loop = asyncio.get_running_loop()
        self._timers[timer] = loop.call_later(delay_ms / 1000, self._timer_fired, timer)

    def _timer_fired(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        self.feed(TimerFired(timer))

    def _let_go(self) -> None:
        self._deferral.drop()
        for broker_id in list(self._channels):
            self._close_channel(broker_id)
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    # --- what API handlers ask ----------------------------------------------------------------------------------------

    async def call(self, request: ApiEvent[R]) -> R:
        """Return the machine's reply. Raises `Refused` if the controller refuses the request as a whole."""
        if self._is_stopped:
            raise Refused(ErrorCode.NOT_CONTROLLER)
        future: asyncio.Future[R | Failure] = asyncio.get_running_loop().create_future()
        self._replies[request] = future
        try:
            self.happened(request)
            value = await future
        finally:
            self._replies.pop(request, None)
        if isinstance(value, Failure):
            raise Refused(value.code, value.message)
        return value

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, election_type: ElectionType, *, timeout_ms: int
    ) -> dict[TopicPartition, Failure | None]:
        """Elect leaders. None means success: the elected broker leads, and this broker's metadata shows it."""
        wanted = None if partitions is None else tuple(partitions)
        results = await self.call(ElectLeaders(wanted, election_type))
        leaders = {partition: result for partition, result in results.items() if not isinstance(result, Failure)}

        def is_led(partition: TopicPartition) -> bool:
            state = self._metadata.partition(partition)
            return state is not None and state.leader == leaders[partition]

        late = await wait_until_shown(self._metadata, leaders, is_led, timeout_s=timeout_ms / 1000)
        if late:
            _log.info(
                "[controller] metadata of %d elected partitions did not arrive within %d ms", len(late), timeout_ms
            )
        failures = {partition: result for partition, result in results.items() if isinstance(result, Failure)}
        failures |= dict.fromkeys(late, Failure(ErrorCode.REQUEST_TIMED_OUT))
        return {partition: failures.get(partition) for partition in results}

    def _require_active(self) -> None:
        if not self._machine.is_active:
            raise Refused(ErrorCode.NOT_CONTROLLER)

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        timeout_ms: int,
        validate_only: bool = False,
        permit: Permit = _always,
    ) -> dict[str, CreatedTopic]:
        self._require_active()
        with _zookeeper_refusals():
            return await self._topics.create(topics, timeout_ms=timeout_ms, validate_only=validate_only, permit=permit)

    async def delete_topics(
        self, names: Sequence[str], *, timeout_ms: int, permit: Permit = _always
    ) -> dict[str, Failure | None]:
        self._require_active()
        if not self._config.settings.delete_topic_enable:
            raise Refused(ErrorCode.TOPIC_DELETION_DISABLED)
        with _zookeeper_refusals():
            return await self._topics.delete(names, timeout_ms=timeout_ms, permit=permit)

    async def create_partitions(
        self,
        wanted: Sequence[MorePartitions],
        *,
        timeout_ms: int,
        validate_only: bool = False,
        permit: Permit = _always,
    ) -> dict[str, Failure | None]:
        self._require_active()
        with _zookeeper_refusals():
            return await self._topics.create_partitions(
                wanted, timeout_ms=timeout_ms, validate_only=validate_only, permit=permit
            )

    async def update_features(self, names: Sequence[str]) -> dict[str, Failure]:
        """Refuse each feature: a 3.9 cluster with ZooKeeper has no features that could be finalized."""
        self._require_active()
        return {
            name: Failure(
                ErrorCode.INVALID_REQUEST,
                "Could not apply finalized feature update because the provided feature is not supported.",
            )
            for name in names
        }


@contextmanager
def _zookeeper_refusals() -> Iterator[None]:
    """Answer NOT_CONTROLLER if the session ends during a request: this broker is not controller any more."""
    try:
        yield
    except ZkError as error:
        raise Refused(ErrorCode.NOT_CONTROLLER, str(error)) from error
