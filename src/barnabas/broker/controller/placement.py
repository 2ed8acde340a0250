"""The placement of new partitions' replicas, and the checks on new topics. Pure.

This is Kafka's algorithm. Leaders go round the brokers. Followers go round with a shift that grows, so that the partitions of
one broker have their other replicas spread over all other brokers. With racks, the round alternates between racks, and a
partition uses every rack before it uses one twice. The caller injects the random start of the round.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment

#: Partitions of one topic. The assignment is one znode, which has room for about as many. A request for 2^31 is refused early.
PARTITIONS_MAX = 50_000

#: Partition -> its replicas, the preferred leader first.
Assignment = dict[int, tuple[int, ...]]
#: Returns a random number below its argument.
Choose = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    id: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The position at which a round begins, and the shift of the first followers."""

    index: int
    shift: int


def check_partition_count(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"{count} partitions: a topic has {PARTITIONS_MAX} at most.")


def assign_replicas(
    brokers: Sequence[BrokerPlace],
    *,
    partitions: int,
    replication_factor: int,
    start: Start,
    first_partition: int = 0,
) -> Assignment:
    """Place the replicas of `partitions` new partitions. Racks are used only if all brokers have one."""
    if partitions <= 0:
        raise Refused(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    check_partition_count(first_partition + partitions)
    if replication_factor <= 0:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}.",
        )
    racks = {broker.id: broker.rack for broker in brokers}
    if all(rack is None for rack in racks.values()):
        ring = [broker.id for broker in brokers]
        racks = {}
    elif any(rack is None for rack in racks.values()):
        raise Refused(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Not all brokers have rack information for replica rack aware assignment.",
        )
    else:
        ring = rack_alternated({broker: rack for broker, rack in racks.items() if rack is not None})
    assignment: Assignment = {}
    shift = start.shift
    for number in range(first_partition, first_partition + partitions):
        if number > 0 and number % len(ring) == 0:
            shift += 1
        first = (number + start.index) % len(ring)
        if racks:
            assignment[number] = _spread_over_racks(ring, racks, first, shift, replication_factor)
        else:
            followers = (ring[_follower(first, shift, each, len(ring))] for each in range(replication_factor - 1))
            assignment[number] = (ring[first], *followers)
    return assignment


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Order all brokers so that neighbours are in different racks as long as possible."""
    queues = {
        rack: sorted((broker for broker, its_rack in racks.items() if its_rack == rack), reverse=True)
        for rack in sorted(set(racks.values()))
    }
    ring: list[int] = []
    while len(ring) < len(racks):
        ring += [brokers.pop() for brokers in queues.values() if brokers]
    return ring


def _spread_over_racks(
    ring: Sequence[int], racks: Mapping[int, str | None], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [ring[first]]
    used_racks = {racks[ring[first]]}
    step = 0
    while len(replicas) < replication_factor:
        candidate = ring[_follower(first, shift * rack_count, step, len(ring))]
        step += 1
        rack_is_free = racks[candidate] not in used_racks or len(used_racks) == rack_count
        broker_is_free = candidate not in replicas or len(replicas) == len(ring)
        if rack_is_free and broker_is_free:
            replicas.append(candidate)
            used_racks.add(racks[candidate])
    return tuple(replicas)


def _follower(first: int, shift: int, step: int, size: int) -> int:
    """Return a position that is never `first` itself: the shift is between 1 and size - 1."""
    return (first + 1 + (shift + step) % (size - 1)) % size


# --- checks on new topics -----------------------------------------------------------------------------------------


def validate_no_collision(name: str, topics: Iterable[str]) -> None:
    """Refuse a name that differs from another topic's only in `.` and `_`: the two would have the same metric names."""
    if "." not in name and "_" not in name:
        return
    unified = name.replace(".", "_")
    colliding = sorted(each for each in topics if each != name and each.replace(".", "_") == unified)
    if colliding:
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topics: {', '.join(colliding)}",
        )


def validate_manual_assignment(assignment: Mapping[int, Sequence[int]]) -> Assignment:
    """Check the replicas that a client chose for a new topic. Brokers that do not exist are allowed, as in Kafka."""
    if len({len(replicas) for replicas in assignment.values()}) != 1:
        raise _bad_assignment("All partitions should have the same number of replicas")
    for replicas in assignment.values():
        if len(set(replicas)) != len(replicas):
            raise _bad_assignment(f"Duplicate replica assignment found: {dict(assignment)}")
        if not replicas:
            raise _bad_assignment("A partition needs at least one replica")
    if sorted(assignment) != list(range(len(assignment))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return {number: tuple(assignment[number]) for number in sorted(assignment)}


def grow(
    topic: str,
    existing: Mapping[int, ReplicaAssignment],
    *,
    count: int,
    brokers: Sequence[BrokerPlace],
    manual: Sequence[Sequence[int]] | None = None,
) -> Assignment:
    """Place the partitions that CreatePartitions adds, so that the topic has `count`."""
    if any(each.is_being_reassigned for each in existing.values()):
        raise Refused(
            ErrorCode.REASSIGNMENT_IN_PROGRESS, f"A partition reassignment is in progress for the topic '{topic}'."
        )
    check_partition_count(count)
    if count < len(existing):
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {len(existing)} partitions, which is higher than the requested {count}.",
        )
    if count == len(existing):
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {len(existing)} partitions.")
    first = existing[0].replicas
    if manual is not None:
        return _validate_growth(manual, first_partition=len(existing), count=count, factor=len(first), brokers=brokers)
    ordered = sorted(brokers, key=lambda broker: broker.id)
    # Continue the round from the topic's first replica.
    index = next((at for at, broker in enumerate(ordered) if broker.id >= first[0]), 0)
    return assign_replicas(
        ordered,
        partitions=count - len(existing),
        replication_factor=len(first),
        start=Start(index, index),
        first_partition=len(existing),
    )


def _validate_growth(
    manual: Sequence[Sequence[int]], *, first_partition: int, count: int, factor: int, brokers: Sequence[BrokerPlace]
) -> Assignment:
    known = {broker.id for broker in brokers}
    unknown = sorted({each for replicas in manual for each in replicas} - known)
    if unknown:
        raise _bad_assignment(f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}.")
    added = count - first_partition
    if len(manual) != added:
        raise _bad_assignment(f"Increasing the number of partitions by {added} but {len(manual)} assignments provided.")
    for number, replicas in enumerate(manual, start=first_partition):
        if not replicas:
            raise _bad_assignment(f"Cannot have replication factor of 0 for partition id {number}.")
        if len(set(replicas)) != len(replicas):
            raise _bad_assignment(
                f"Duplicate brokers not allowed in replica assignment: {', '.join(map(str, replicas))} "
                f"for partition id {number}."
            )
    wrong = {number: len(each) for number, each in enumerate(manual, start=first_partition) if len(each) != factor}
    if wrong:
        raise _bad_assignment(
            f"Inconsistent replication factor between partitions, partition 0 has {factor} while partitions "
            f"[{', '.join(map(str, wrong))}] have replication factors [{', '.join(map(str, wrong.values()))}], "
            "respectively."
        )
    return {number: tuple(replicas) for number, replicas in enumerate(manual, start=first_partition)}


def _bad_assignment(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
