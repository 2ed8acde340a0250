"""What an administrator asks of topics: make, delete, enlarge. Validation, the znodes, and the wait until it is so.

Owner: the event loop of the controller's broker. The controller's own watches do the rest: a znode that was written here
is seen by the machine, as one that a tool wrote would be.
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
from barnabas.broker.controller.effects import Failure
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

#: Whether so many partitions may be created or deleted now (KIP-599).
Permit = Callable[[int], bool]
_THROTTLED = "The throttling quota has been exceeded."

#: In CreateTopics: take the broker's default.
DEFAULT = -1
#: How long a new topic waits until the former one of its name is gone: clients hear of a deletion before the data has gone.
FORMER_TOPIC_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    #: -1: `num.partitions`.
    partitions: int = DEFAULT
    #: -1: `default.replication.factor`.
    replication_factor: int = DEFAULT
    #: By hand, instead of the two above.
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    #: None: it is there.
    failure: Failure | None
    topic_id: TopicId | None = None
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class MorePartitions:
    name: str
    #: How many it shall have.
    count: int
    #: Replicas of the new ones, by hand.
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
        #: By requests that are under way, which set the event when they know what has become of it. Nobody else may begin
        #: these, and write other settings.
        self._being_made: dict[str, asyncio.Event] = {}
        #: Those who wait for topics to be gone, and for which.
        self._awaiting: dict[asyncio.Event, set[str]] = {}

    def machine_changed(self) -> None:
        """The machine has dealt with an event: topics may be gone now, or may have to wait for a broker."""
        for event, names in self._awaiting.items():
            if not self._going(names):
                event.set()

    def _going(self, names: Collection[str]) -> set[str]:
        """Those that are being deleted, and need not wait for anybody."""
        context = self._machine.context
        return context.to_delete.intersection(names) - context.deletion_ineligible

    # --- making -------------------------------------------------------------------------------------------------------

    async def create(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool, permit: Permit
    ) -> dict[str, CreatedTopic]:
        results: dict[str, CreatedTopic] = {}
        planned: dict[str, tuple[NewTopic, Assignment]] = {}
        names = [topic.name for topic in topics]
        timeout_ms -= await self._until_gone(names, timeout_ms=timeout_ms)
        timeout_ms -= await self._until_made(names, timeout_ms=timeout_ms)
        # What is only validated keeps nobody from making it.
        being_made = self._being_made.copy() if validate_only else self._being_made
        is_settled = asyncio.Event()
        try:
            async for topic in in_turns(topics, size=200):
                try:
                    assignment = self._plan(topic, being_made)
                    if not validate_only and not permit(len(assignment)):
                        raise Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED)
                except Refused as refused:
                    results[topic.name] = CreatedTopic(Failure(refused.code, refused.message))
                else:
                    planned[topic.name] = (topic, assignment)
                    being_made[topic.name] = is_settled
            if validate_only:
                return results | {name: _created(None, None, assignment) for name, (_, assignment) in planned.items()}
            made = await self._write(planned)
        finally:
            for name in planned:
                del being_made[name]
            is_settled.set()
        for name, (_, assignment) in planned.items():
            outcome = made[name]
            if isinstance(outcome, Failure):
                results[name] = CreatedTopic(outcome)
            else:
                results[name] = _created(None, outcome, assignment)
        waiting = {name: tuple(planned[name][1]) for name in made if results[name].failure is None}
        late = await self._until(
            waiting, lambda name: self._metadata.has_all_leaders(name, waiting[name]), timeout_ms=timeout_ms
        )
        for name in late:
            results[name] = CreatedTopic(Failure(ErrorCode.REQUEST_TIMED_OUT))
        return results

    async def _until_gone(self, names: Collection[str], *, timeout_ms: int) -> int:
        """Wait a little for topics of these names that are on their way out; for how many milliseconds it did."""
        going = self._going(names)
        if not going or timeout_ms <= 0:
            return 0
        gone = asyncio.Event()
        self._awaiting[gone] = going
        try:
            return await _waited_ms(gone, min(FORMER_TOPIC_WAIT_S, timeout_ms / 1000))
        finally:
            del self._awaiting[gone]

    async def _until_made(self, names: Collection[str], *, timeout_ms: int) -> int:
        """Wait for other requests that make topics of these names, and may fail; for how many milliseconds it did."""
        waited_ms = 0
        while waited_ms < timeout_ms and (
            others := [self._being_made[name] for name in names if name in self._being_made]
        ):
            waited_ms += await _waited_ms(others[0], (timeout_ms - waited_ms) / 1000)
        return waited_ms

    def _plan(self, topic: NewTopic, being_made: Collection[str]) -> Assignment:
        context = self._machine.context
        if topic.name in context.to_delete:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' is marked for deletion.")
        if topic.name in context.topics or self._metadata.topic(topic.name) is not None:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if topic.name in being_made:
            # Not that it exists: a client whose first attempt was lost would take this one's answer for success.
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Topic '{topic.name}' is being created by a request that has not ended yet.",
            )
        by_number = topic.partitions != DEFAULT or topic.replication_factor != DEFAULT
        if topic.assignment and by_number:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. "
                "Both cannot be used at the same time.",
            )
        check_topic_name(topic.name)
        validate_no_collision(topic.name, (*context.topics, *being_made))
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
        """Settings first: a broker that sees the topic must find them."""
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
        # Of a topic that was deleted; or of one that is there, and that this controller has not heard of yet.
        if left_over:
            there = (await self._session.batch([Exists(paths.topic(name)) for name, _ in left_over])).results
            await self._guarded([each for (_, each), result in zip(left_over, there, strict=True) if not result.ok])
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
        ours = await self._made_here(known, ids)
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

    async def _made_here(self, names: Sequence[str], ids: Mapping[str, TopicId]) -> set[str]:
        """Of topics that are there already, those that were made with these ids: a lost connection takes the answer along, and
        what is repeated then is refused."""
        found = (await self._session.batch([Get(paths.topic(name)) for name in names])).results if names else ()
        return {name for name, result in zip(names, found, strict=True) if _topic_id(name, result) == ids[name]}

    # --- deleting -----------------------------------------------------------------------------------------------------

    async def delete(self, names: Sequence[str], *, timeout_ms: int, permit: Permit) -> dict[str, Failure | None]:
        """Topics that have gone from the metadata are deleted for clients; their data follows."""
        unique = list(dict.fromkeys(names))
        found = (await self._session.batch([Exists(paths.topic(name)) for name in unique])).results
        there = [name for name, result in zip(unique, found, strict=True) if result.ok]
        results: dict[str, Failure | None] = {
            name: Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in unique if name not in there
        }
        permitted = [name for name in there if permit(len(self._machine.context.assignments.get(name, ())))]
        for name in there:
            if name not in permitted:
                results[name] = Failure(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED)
        marked = await self._guarded([Create(paths.delete_topic(name)) for name in permitted])
        for name, result in zip(permitted, marked, strict=True):
            wanted = result.code in (ZkCode.OK, ZkCode.NODE_EXISTS)
            results[name] = None if wanted else Failure(ErrorCode.UNKNOWN_SERVER_ERROR, result.code.value)
        waiting = [name for name in there if results[name] is None]
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
                # The topic was changed meanwhile.
                results[name] = Failure(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"'{name}': {result.code.value}")
        waiting = {name: tuple(planned[name][2]) for name in planned if results[name] is None}
        for name in await self._until(
            waiting, lambda name: self._metadata.has_all_leaders(name, waiting[name]), timeout_ms=timeout_ms
        ):
            results[name] = Failure(ErrorCode.REQUEST_TIMED_OUT)
        return results

    async def _is_written(self, operation: SetData) -> bool:
        """Whether what was refused has been done all the same: the answer was lost with its connection."""
        [found] = (await self._session.batch([Get(operation.path)])).results
        return found.stat is not None and (found.data, found.stat.version) == (operation.data, operation.version + 1)

    def _plan_growth(self, more: MorePartitions, result: Result) -> tuple[TopicAssignment, int, Assignment]:
        if more.name in FIXED_TOPICS:
            # Groups would not find their offsets any more, and the history of logs in the tier would count as gone.
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

    async def _until(self, names: Iterable[str], is_so: Callable[[str], bool], *, timeout_ms: int) -> list[str]:
        """Waits until the metadata says so for each; answers with those for which it did not in time."""
        missing = await wait_until_shown(self._metadata, names, is_so, timeout_s=timeout_ms / 1000)
        if missing and timeout_ms > 0:
            _log.info("not done within %d ms: %s", timeout_ms, ", ".join(sorted(missing)))
        return sorted(missing)


async def _waited_ms(event: asyncio.Event, limit_s: float) -> int:
    """Wait for the event, for no longer than that; how long it was."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass  # whoever waits looks for itself
    return math.ceil((now_s() - began_s) * 1000)


def _topic_id(name: str, result: Result) -> TopicId | None:
    try:
        return TopicAssignment.decode(name, result.data or b"").topic_id
    except Malformed:
        return None


def _created(failure: Failure | None, topic_id: TopicId | None, assignment: Assignment) -> CreatedTopic:
    return CreatedTopic(failure, topic_id, len(assignment), len(assignment[0]))
