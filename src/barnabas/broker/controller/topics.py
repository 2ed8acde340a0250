"""Creating, deleting and enlarging topics for an administrator: validation, the znodes, and the wait for the metadata.

Owner: the event loop of the controller's broker. The controller's own watches do the rest: the machine sees a znode that was
written here as it sees one that a tool wrote.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.errors import ConfigError, ErrorCode, Malformed, Refused
from barnabas.base.ids import TopicId
from barnabas.base.topics import FIXED_TOPICS, check_topic_name
from barnabas.broker.controller.events import Failure
from barnabas.broker.controller.machine import ControllerMachine
from barnabas.broker.controller.placement import (
    Assignment,
    BrokerPlace,
    Choose,
    Start,
    assign_replicas,
    grow,
    validate_manual_assignment,
    validate_no_collision,
)
from barnabas.broker.runtime.turns import in_turns
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.broker.zookeeper_client.operations import Create, Exists, Get, Guard, Operation, Result, SetData, ZkCode
from barnabas.broker.zookeeper_client.request_sizes import check_fits
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment, TopicAssignment, encode_config

_log = logging.getLogger(__name__)

#: Returns whether the quota allows creating or deleting this number of partitions now (KIP-599).
Permit = Callable[[int], bool]
_THROTTLED = "The throttling quota has been exceeded."

#: In CreateTopics: use the broker's default.
DEFAULT = -1
#: How long a new topic waits until the former topic of its name is gone: clients see a deletion before the data is gone.
FORMER_TOPIC_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    #: Number of partitions; -1: `num.partitions`.
    partitions: int = DEFAULT
    #: Replicas of each partition; -1: `default.replication.factor`.
    replication_factor: int = DEFAULT
    #: Partition -> replicas chosen by the client, instead of the two numbers above.
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    #: None: the topic exists.
    failure: Failure | None
    topic_id: TopicId | None = None
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class MorePartitions:
    name: str
    #: Number of partitions after the change.
    count: int
    #: Replicas of the new partitions, chosen by the client.
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    #: `num.partitions`
    partitions: int = 1
    #: `default.replication.factor`
    replication_factor: int = 1


class TopicAdmin:
    def __init__(
        self,
        session: ZooKeeperSession,
        machine: ControllerMachine,
        metadata: MetadataCache,
        *,
        defaults: TopicDefaults,
        choose: Choose,
        new_topic_id: Callable[[], TopicId],
        validate_config: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._session = session
        self._machine = machine
        self._metadata = metadata
        self._defaults = defaults
        self._choose = choose
        self._new_topic_id = new_topic_id
        self._validate_config = validate_config
        #: Topics that requests in progress create. Each request sets its event when it has ended. No other request may create
        #: these topics meanwhile, since it could write other settings.
        self._being_created: dict[str, asyncio.Event] = {}
        #: Requests that wait for topics to be deleted, with the names of these topics.
        self._awaiting: dict[asyncio.Event, set[str]] = {}

    def machine_changed(self) -> None:
        """The machine has handled an event: topics may be deleted now, or may have to wait for a broker."""
        for event, names in self._awaiting.items():
            if not self._being_deleted(names):
                event.set()

    def _being_deleted(self, names: Collection[str]) -> set[str]:
        """Return the topics that are being deleted and wait for no broker and no reassignment."""
        context = self._machine.context
        return context.to_delete.intersection(names) - context.deletion_ineligible

    # --- creating -------------------------------------------------------------------------------------------------------

    async def create(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool, permit: Permit
    ) -> dict[str, CreatedTopic]:
        results: dict[str, CreatedTopic] = {}
        planned: dict[str, tuple[NewTopic, Assignment]] = {}
        names = [topic.name for topic in topics]
        timeout_ms -= await self._until_gone(names, timeout_ms=timeout_ms)
        timeout_ms -= await self._until_created(names, timeout_ms=timeout_ms)
        # A request that only validates does not keep another request from creating the topic.
        being_created = self._being_created.copy() if validate_only else self._being_created
        is_settled = asyncio.Event()
        try:
            async for topic in in_turns(topics, size=200):
                try:
                    assignment = self._plan(topic, being_created)
                    if not validate_only and not permit(len(assignment)):
                        raise Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED)
                except Refused as refused:
                    results[topic.name] = CreatedTopic(Failure(refused.code, refused.message))
                else:
                    planned[topic.name] = (topic, assignment)
                    being_created[topic.name] = is_settled
            if validate_only:
                return results | {name: _created(None, assignment) for name, (_, assignment) in planned.items()}
            written = await self._write(planned)
        finally:
            for name in planned:
                del being_created[name]
            is_settled.set()
        for name, (_, assignment) in planned.items():
            outcome = written[name]
            if isinstance(outcome, Failure):
                results[name] = CreatedTopic(outcome)
            else:
                results[name] = _created(outcome, assignment)
        waiting = {name: tuple(planned[name][1]) for name in written if results[name].failure is None}
        late = await self._until(
            waiting, lambda name: self._metadata.has_all_leaders(name, waiting[name]), timeout_ms=timeout_ms
        )
        for name in late:
            results[name] = CreatedTopic(Failure(ErrorCode.REQUEST_TIMED_OUT))
        return results

    async def _until_gone(self, names: Collection[str], *, timeout_ms: int) -> int:
        """Wait a little for topics of these names that are being deleted; return the milliseconds waited."""
        going = self._being_deleted(names)
        if not going or timeout_ms <= 0:
            return 0
        gone = asyncio.Event()
        self._awaiting[gone] = going
        try:
            return await _waited_ms(gone, min(FORMER_TOPIC_WAIT_S, timeout_ms / 1000))
        finally:
            del self._awaiting[gone]

    async def _until_created(self, names: Collection[str], *, timeout_ms: int) -> int:
        """Wait for other requests that create topics of these names, and may fail; return the milliseconds waited."""
        waited_ms = 0
        while waited_ms < timeout_ms and (
            others := [self._being_created[name] for name in names if name in self._being_created]
        ):
            waited_ms += await _waited_ms(others[0], (timeout_ms - waited_ms) / 1000)
        return waited_ms

    def _plan(self, topic: NewTopic, being_created: Collection[str]) -> Assignment:
        context = self._machine.context
        if topic.name in context.to_delete:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' is marked for deletion.")
        if topic.name in context.topics or self._metadata.topic(topic.name) is not None:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if topic.name in being_created:
            # Do not answer that it exists: a client whose first attempt was lost would take this request's topic for its own.
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Topic '{topic.name}' is being created by another request: try again later.",
            )
        by_number = topic.partitions != DEFAULT or topic.replication_factor != DEFAULT
        if topic.assignment and by_number:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. "
                "Both cannot be used at the same time.",
            )
        check_topic_name(topic.name)
        validate_no_collision(topic.name, (*context.topics, *being_created))
        if topic.assignment:
            assignment = validate_manual_assignment(topic.assignment)
        else:
            brokers = self._brokers()
            assignment = assign_replicas(
                brokers,
                partitions=self._defaults.partitions if topic.partitions == DEFAULT else topic.partitions,
                replication_factor=self._defaults.replication_factor
                if topic.replication_factor == DEFAULT
                else topic.replication_factor,
                start=Start(self._choose(max(1, len(brokers))), self._choose(max(1, len(brokers)))),
            )
        try:
            self._validate_config(topic.configs)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
        check_fits(paths.config_entity(paths.TOPICS, topic.name), encode_config(topic.configs))
        return assignment

    async def _write(self, planned: Mapping[str, tuple[NewTopic, Assignment]]) -> dict[str, TopicId | Failure]:
        """Write the settings first: a broker that sees the topic must find them."""
        settings = {
            paths.config_entity(paths.TOPICS, name): encode_config(topic.configs)
            for name, (topic, _) in planned.items()
        }
        created = await self._guarded([Create(path, data) for path, data in settings.items()])
        left_over = [
            (name, SetData(path, data))
            for name, (path, data), result in zip(planned, settings.items(), created, strict=True)
            if result.code is ZkCode.NODE_EXISTS
        ]
        # The settings are left over from a deleted topic, or belong to a topic that this controller does not know yet.
        if left_over:
            existing = (await self._session.batch([Exists(paths.topic(name)) for name, _ in left_over])).results
            await self._guarded([each for (_, each), result in zip(left_over, existing, strict=True) if not result.ok])
        ids = {name: self._new_topic_id() for name in planned}
        results = await self._guarded(
            [
                Create(
                    paths.topic(name),
                    TopicAssignment(
                        ids[name], {number: ReplicaAssignment(each) for number, each in assignment.items()}
                    ).encode(),
                )
                for name, (_, assignment) in planned.items()
            ]
        )
        known = [name for name, result in zip(planned, results, strict=True) if result.code is ZkCode.NODE_EXISTS]
        ours = await self._created_by_this_request(known, ids)
        outcomes: dict[str, TopicId | Failure] = {}
        for name, result in zip(planned, results, strict=True):
            if result.ok or name in ours:
                outcomes[name] = ids[name]
            elif result.code is ZkCode.NODE_EXISTS:
                outcomes[name] = Failure(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            else:
                code = (
                    ErrorCode.INVALID_PARTITIONS if result.code is ZkCode.TOO_LARGE else ErrorCode.UNKNOWN_SERVER_ERROR
                )
                outcomes[name] = Failure(code, f"{paths.topic(name)}: {result.code.value}")
        return outcomes

    async def _created_by_this_request(self, names: Sequence[str], ids: Mapping[str, TopicId]) -> set[str]:
        """Of topics that exist already, return those that this request created: their ids are its ids.

        If a connection is lost, its answers are lost too, and ZooKeeper refuses the repeated writes.
        """
        found = (await self._session.batch([Get(paths.topic(name)) for name in names])).results if names else ()
        return {name for name, result in zip(names, found, strict=True) if _topic_id(name, result) == ids[name]}

    # --- deleting -----------------------------------------------------------------------------------------------------

    async def delete(self, names: Sequence[str], *, timeout_ms: int, permit: Permit) -> dict[str, Failure | None]:
        """Delete topics. For clients a topic is deleted once the metadata does not show it; its data follows."""
        unique = list(dict.fromkeys(names))
        found = (await self._session.batch([Exists(paths.topic(name)) for name in unique])).results
        existing = [name for name, result in zip(unique, found, strict=True) if result.ok]
        results: dict[str, Failure | None] = {
            name: Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in unique if name not in existing
        }
        permitted = [name for name in existing if permit(len(self._machine.context.assignments.get(name, ())))]
        for name in existing:
            if name not in permitted:
                results[name] = Failure(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED)
        marked = await self._guarded([Create(paths.delete_topic(name)) for name in permitted])
        for name, result in zip(permitted, marked, strict=True):
            wanted = result.code in (ZkCode.OK, ZkCode.NODE_EXISTS)
            results[name] = None if wanted else Failure(ErrorCode.UNKNOWN_SERVER_ERROR, result.code.value)
        waiting = [name for name in existing if results[name] is None]
        for name in await self._until(waiting, lambda name: self._metadata.topic(name) is None, timeout_ms=timeout_ms):
            results[name] = Failure(ErrorCode.REQUEST_TIMED_OUT)
        return {name: results[name] for name in unique}

    # --- enlarging ----------------------------------------------------------------------------------------------------

    async def create_partitions(
        self, wanted: Sequence[MorePartitions], *, timeout_ms: int, validate_only: bool, permit: Permit
    ) -> dict[str, Failure | None]:
        results: dict[str, Failure | None] = {}
        planned: dict[str, tuple[TopicAssignment, int, Assignment]] = {}
        found = (await self._session.batch([Get(paths.topic(each.name)) for each in wanted])).results
        for more, result in zip(wanted, found, strict=True):
            try:
                growth = self._plan_growth(more, result)
                if not validate_only and not permit(len(growth[2])):
                    raise Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED)
                planned[more.name] = growth
                results[more.name] = None
            except Refused as refused:
                results[more.name] = Failure(refused.code, refused.message)
        if validate_only:
            return results
        writes = [
            SetData(
                paths.topic(name),
                TopicAssignment(
                    before.topic_id,
                    {**before.partitions, **{number: ReplicaAssignment(each) for number, each in added.items()}},
                ).encode(),
                version,
            )
            for name, (before, version, added) in planned.items()
        ]
        written = await self._guarded(writes)
        for name, operation, result in zip(planned, writes, written, strict=True):
            if result.code is ZkCode.TOO_LARGE:
                results[name] = Failure(ErrorCode.INVALID_PARTITIONS, f"{operation.path}: {result.code.value}")
            elif not result.ok and not await self._is_written(operation):
                # The topic has changed since it was read.
                results[name] = Failure(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"'{name}': {result.code.value}")
        waiting = {name: tuple(planned[name][2]) for name in planned if results[name] is None}
        for name in await self._until(
            waiting, lambda name: self._metadata.has_all_leaders(name, waiting[name]), timeout_ms=timeout_ms
        ):
            results[name] = Failure(ErrorCode.REQUEST_TIMED_OUT)
        return results

    async def _is_written(self, operation: SetData) -> bool:
        """Whether a refused write took effect after all: its answer was lost with the connection."""
        [found] = (await self._session.batch([Get(operation.path)])).results
        return found.stat is not None and (found.data, found.stat.version) == (operation.data, operation.version + 1)

    def _plan_growth(self, more: MorePartitions, result: Result) -> tuple[TopicAssignment, int, Assignment]:
        if more.name in FIXED_TOPICS:
            # Groups would not find their offsets any more, and the history of tiered logs would be lost.
            raise Refused(
                ErrorCode.INVALID_PARTITIONS, f"The number of partitions of the topic '{more.name}' cannot be changed."
            )
        if not result.ok or result.stat is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{more.name}' does not exist.")
        try:
            before = TopicAssignment.decode(more.name, result.data or b"")
        except Malformed as error:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        if more.name in self._machine.context.to_delete:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{more.name}' is being deleted.")
        added = grow(more.name, before.partitions, count=more.count, brokers=self._brokers(), manual=more.assignments)
        return before, result.stat.version, added

    # --- the machinery ------------------------------------------------------------------------------------------------

    def _brokers(self) -> list[BrokerPlace]:
        return [BrokerPlace(broker.id, broker.rack) for _, broker in sorted(self._metadata.brokers.items())]

    async def _guarded(self, operations: Sequence[Operation]) -> tuple[Result, ...]:
        if not operations:
            return ()
        if not self._machine.is_active:
            raise Refused(ErrorCode.NOT_CONTROLLER)
        guard = Guard(self._machine.context.epoch_zk_version)
        answer = await self._session.batch(operations, guard)
        if answer.moved:
            raise Refused(ErrorCode.NOT_CONTROLLER)
        return answer.results

    async def _until(self, names: Iterable[str], is_shown: Callable[[str], bool], *, timeout_ms: int) -> list[str]:
        """Wait until `is_shown` holds for each name in the metadata; return the names for which it is not true in time."""
        missing = await wait_until_shown(self._metadata, names, is_shown, timeout_s=timeout_ms / 1000)
        if missing and timeout_ms > 0:
            _log.info("[controller] not done within %d ms: %s", timeout_ms, ", ".join(sorted(missing)))
        return sorted(missing)


async def _waited_ms(event: asyncio.Event, limit_s: float) -> int:
    """Wait for the event, at most `limit_s`; return the milliseconds waited."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass  # the caller checks the condition itself
    return math.ceil((now_s() - began_s) * 1000)


def _topic_id(name: str, result: Result) -> TopicId | None:
    try:
        return TopicAssignment.decode(name, result.data or b"").topic_id
    except Malformed:
        return None


def _created(topic_id: TopicId | None, assignment: Assignment) -> CreatedTopic:
    return CreatedTopic(None, topic_id, len(assignment), len(assignment[0]))
