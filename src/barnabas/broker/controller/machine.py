"""The controller: cluster events in, effects out. Pure: no I/O, no clock, no randomness.

The machine works on one event at a time, as in Kafka. Its program runs until it needs ZooKeeper: then `handle` returns a
`ZkBatch` among the effects, and the program goes on when `ZkAnswered` comes. Events that come meanwhile wait. Only the end of
the session does not wait: it drops the current work.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId
from barnabas.broker.controller.broker_machine import BrokerMachine
from barnabas.broker.controller.context import ControllerContext
from barnabas.broker.controller.deletion_machine import DeletionMachine
from barnabas.broker.controller.effects import (
    Effect,
    Reply,
    Resigned,
    WatchController,
    ZkBatch,
)
from barnabas.broker.controller.election import NO_CONTROLLER, UNREADABLE, current_controller, depose, race, resign
from barnabas.broker.controller.event_handlers import EventHandlers
from barnabas.broker.controller.events import (
    Abandon,
    ApiEvent,
    ControllerChanged,
    ControllerRefuses,
    Event,
    Failure,
    SessionExpired,
    SessionRenewed,
    SettingsChanged,
    Startup,
    WatchEvent,
    ZkAnswered,
    ZkLost,
)
from barnabas.broker.controller.isr_machine import IsrMachine
from barnabas.broker.controller.journal import Decision
from barnabas.broker.controller.partition_state_machine import PartitionStateMachine
from barnabas.broker.controller.program import ControllerMoved, ControllerState, Program, ZkStep, ask, registration_of
from barnabas.broker.controller.reassignment_machine import ReassignmentMachine
from barnabas.broker.controller.replica_state_machine import ReplicaStateMachine
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.controller.takeover import Takeover
from barnabas.broker.controller.topic_machine import TopicMachine
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Get, Guard, Result

_log = logging.getLogger(__name__)

#: API requests that may wait for their turn. Kafka's clients retry refused requests.
WAITING_MAX = 10_000


class ControllerMachine:
    def __init__(
        self,
        settings: ControllerSettings,
        *,
        new_topic_id: Callable[[], TopicId],
        now_ms: Callable[[], int],
    ) -> None:
        self._state = ControllerState(settings, new_topic_id, now_ms)
        requests = self._requests = RequestBatch(self._state)
        partitions = PartitionStateMachine(self._state, requests)
        replicas = ReplicaStateMachine(self._state, requests)
        deletions = DeletionMachine(self._state, requests, partitions, replicas)
        reassignments = ReassignmentMachine(self._state, requests, partitions, replicas, deletions)
        topics = TopicMachine(self._state, partitions, replicas, deletions)
        brokers = BrokerMachine(self._state, requests, partitions, replicas, deletions, reassignments)
        isr = IsrMachine(self._state, requests)
        self._takeover = Takeover(
            self._state, requests, partitions, replicas, deletions, reassignments, topics, brokers
        )
        self._handlers = EventHandlers(
            self._state, requests, partitions, replicas, deletions, reassignments, topics, brokers, isr, self._takeover
        )

        self._inbox: deque[Event] = deque()
        #: The event in progress, and the batch whose answers its program waits for.
        self._current: Event | None = None
        self._program: Program[None] | None = None
        self._batch_id = 0
        self._controller_id = NO_CONTROLLER
        self._is_registered = False

    # --- state for callers ----------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker is controller, as far as it knows."""
        return self._state.is_active

    @property
    def epoch(self) -> int:
        """The epoch of the current term; 0 if this broker is not controller."""
        return self._state.context.epoch

    @property
    def controller_id(self) -> int:
        return self._controller_id

    @property
    def context(self) -> ControllerContext:
        """The machine's state, for metrics, tests and invariants: callers must not change it."""
        return self._state.context

    @property
    def decisions(self) -> Sequence[Decision]:
        """The latest decisions, oldest first."""
        return tuple(self._state.journal.decisions)

    @property
    def is_idle(self) -> bool:
        return self._current is None and not self._inbox

    def validate(self) -> None:
        """Raise AssertionError if the machine's state contradicts itself."""
        context = self._state.context
        for partition, state in context.leadership.items():
            assert len(set(state.isr)) == len(state.isr), f"{partition}: a broker twice in the ISR {state.isr}"
            assert state.controller_epoch <= context.epoch, f"{partition}: state of a later controller"
        for topic, topic_id in context.topic_ids.items():
            assert context.topic_names[topic_id] == topic
        assert context.deletion_started <= context.to_delete
        assert set(context.brokers) == set(context.broker_epochs)

    # --- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Return the effects of the event, in order. An exception is a bug: carry out `salvage()`, then handle `Abandon`."""
        out: list[Effect] = []
        self._state.out = out
        if isinstance(event, ZkAnswered):
            self._resume(event)
        elif isinstance(event, SessionExpired) or (isinstance(event, ZkLost) and event.batch_id == self._batch_id):
            self._expire()
        elif isinstance(event, ZkLost):
            _log.debug("[controller] batch %d was dropped with its session", event.batch_id)
        elif isinstance(event, WatchEvent) and event in self._inbox:
            _log.debug("[controller] %s is queued already and will read the current state", event)
        elif isinstance(event, ApiEvent) and len(self._inbox) >= WAITING_MAX:
            busy = Failure(ErrorCode.REQUEST_TIMED_OUT, "the controller is busy: try again later")
            self._state.emit(Reply(event, busy))
        else:
            self._inbox.append(event)
        self._run()
        return out

    def salvage(self) -> list[Effect]:
        """Return the effects that `handle` had collected before it raised, such as the reply to the caller."""
        return self._state.out

    def _run(self) -> None:
        while self._program is None and self._inbox:
            event = self._current = self._state.journal.cause = self._inbox.popleft()
            self._program = self._start(event)
            self._advance(None)

    def _resume(self, answer: ZkAnswered) -> None:
        # The end of a session has dropped the program that asked.
        if self._program is None or answer.batch_id != self._batch_id:
            return
        if answer.moved:
            self._advance(ControllerMoved())
        else:
            self._advance(answer.results)

    def _advance(self, answer: tuple[Result, ...] | ControllerMoved | None) -> None:
        """Run the current program until it asks ZooKeeper again or ends."""
        program = self._program
        assert program is not None
        try:
            if isinstance(answer, ControllerMoved):
                step = program.throw(answer)
            else:
                step = program.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            self._finish()
        except ControllerMoved:
            _log.info("[controller] another broker is controller; dropping %s", type(self._current).__name__)
            self._finish()
            # Before anything else, read which broker is controller, and resign.
            self._inbox.appendleft(ControllerChanged())
        except BaseException:
            self._requests.clear()
            self._finish()
            raise
        else:
            self._ask(step)

    def _ask(self, step: ZkStep) -> None:
        self._batch_id += 1
        guard = Guard(self._state.context.epoch_zk_version) if step.guarded else None
        self._state.emit(ZkBatch(self._batch_id, step.operations, guard, step.when_quiet))

    def _finish(self) -> None:
        event, self._current, self._program = self._current, None, None
        if self._state.is_active:
            self._requests.flush()
        else:
            self._requests.clear()
        if isinstance(event, ApiEvent) and not self._handlers.has_replied:
            self._state.emit(Reply(event, Failure(ErrorCode.NOT_CONTROLLER)))

    def _expire(self) -> None:
        """Drop everything that belonged to the expired session."""
        self._is_registered = False
        dropped = [*([self._current] if self._current else []), *self._inbox]
        if self._program is not None:
            self._program.close()
        answered = self._handlers.has_replied
        # Ignore answers to batches that were asked for before.
        self._batch_id += 1
        self._current, self._program = None, None
        self._inbox.clear()
        self._step_down()
        for index, event in enumerate(dropped):
            if isinstance(event, ApiEvent) and not (index == 0 and answered):
                self._state.emit(Reply(event, Failure(ErrorCode.NOT_CONTROLLER)))
            elif isinstance(event, SettingsChanged):
                self._state.settings = event.settings
        self._note_controller(NO_CONTROLLER)

    # --- the controller -----------------------------------------------------------------------------------------------

    def _start(self, event: Event) -> Program[None]:
        self._handlers.has_replied = False
        match event:
            case Startup() | SessionRenewed():
                self._is_registered = True
                return self._look_and_contend()
            case ControllerChanged():
                return self._look_and_contend()
            case ControllerRefuses(controller):
                return self._depose(controller)
            case Abandon(reason):
                return self._abandon(reason)
            case _:
                return self._handlers.program(event)

    def _look_and_contend(self) -> Program[None]:
        """Read which broker is controller. If there is none, registered brokers race for it."""
        controller = yield from current_controller()
        if controller == UNREADABLE:
            return  # keep what we know; if we are controller, the epoch still guards our writes
        self._note_controller(controller)
        if self._state.is_active and controller != self._state.settings.broker_id:
            self._step_down()
        if controller != NO_CONTROLLER or not self._is_registered:
            yield from self._watch_controller()
            return
        term = yield from race(self._state)
        controller = yield from current_controller()
        self._note_controller(NO_CONTROLLER if controller == UNREADABLE else controller)
        yield from self._watch_controller()
        if term is None or self._controller_id != self._state.settings.broker_id:
            return
        context = self._state.context
        context.epoch, context.epoch_zk_version = term.epoch, term.epoch_zk_version
        self._state.is_active = True
        _log.info("[controller] broker %d is controller with epoch %d", self._controller_id, term.epoch)
        yield from self._takeover.run()

    def _watch_controller(self) -> Program[None]:
        """Watch the controller's process, if it is another broker's."""
        controller, registration = self._controller_id, None
        if controller not in (NO_CONTROLLER, self._state.settings.broker_id):
            [found] = yield from ask((Get(paths.broker_id(controller)),))
            registration = registration_of(controller, found)
        self._state.emit(WatchController(registration))

    def _depose(self, controller: int) -> Program[None]:
        if self._is_registered and controller == self._controller_id:
            yield from depose(controller)

    def _abandon(self, reason: str) -> Program[None]:
        if not self._state.is_active:
            return
        _log.error("[controller] resigning, so that another broker takes over: %s", reason)
        version = self._state.context.epoch_zk_version
        self._step_down()
        yield from resign(version)

    def _step_down(self) -> None:
        self._requests.clear()
        if not self._state.is_active:
            return
        _log.info("[controller] broker %d is not controller any more", self._state.settings.broker_id)
        self._state.note("resigned as controller")
        self._state.is_active = False
        self._state.context = ControllerContext()
        self._state.emit(Resigned())

    def _note_controller(self, controller: int) -> None:
        if controller != self._controller_id:
            self._controller_id = controller
            self._state.note("controller changed", broker=controller)
