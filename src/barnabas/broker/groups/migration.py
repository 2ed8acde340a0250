"""Groups that change their protocol while they are in use (`group.consumer.migration.policy`). Pure."""

from collections.abc import Iterable

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.broker.groups.classic_group import STABLE, ClassicGroup
from barnabas.broker.groups.classic_member import CONSUMER_PROTOCOL_TYPE, ClassicMember
from barnabas.broker.groups.consumer_group import EMPTY, ClassicTraits, ConsumerGroup, ConsumerMember
from barnabas.broker.groups.group import Outcome, Topics
from barnabas.broker.groups.records import Partitions
from barnabas.broker.groups.settings import GroupSettings
from barnabas.wire import codec
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.consumer_protocol_subscription import TopicPartition as OwnedPartition
from barnabas.wire.messages.join_group import JoinGroupResponse
from barnabas.wire.messages.sync_group import SyncGroupResponse


def may_upgrade(group: ClassicGroup, settings: GroupSettings) -> bool:
    return (
        settings.migration_policy.allows_upgrade
        and group.uses_consumer_protocol
        and len(group.members) <= settings.consumer_max_size
    )


def may_downgrade(group: ConsumerGroup, member_id: str, settings: GroupSettings, *, is_replaced: bool) -> bool:
    """Whether the group becomes classic when this member leaves, or is replaced by a member with the classic protocol."""
    size = len(group.members) - (not is_replaced)
    return (
        0 < size <= settings.max_size
        and settings.migration_policy.allows_downgrade
        and group.all_classic_except(member_id)
    )


def send_back_to_join(group: ClassicGroup, out: Outcome) -> None:
    """Make members that wait in a rebalance of the classic group join again, now to a consumer group."""
    for member in group.members.values():
        again = ErrorCode.REBALANCE_IN_PROGRESS
        group.answer_join(member, JoinGroupResponse(member_id=member.member_id, error_code=again), out.effects)
        group.answer_sync(member, SyncGroupResponse(error_code=again), out.effects)


def to_consumer(group: ClassicGroup, topics: Topics) -> ConsumerGroup:
    """Convert the group: the same members and assignments, with the generation as epoch. It is not yet in log or machine."""
    converted = ConsumerGroup(group.group_id, group_epoch=group.generation, target_epoch=group.generation)
    if not group.members:
        return converted
    protocol = group.protocol if group.protocol in group.candidates() else group.select_protocol()
    assert protocol is not None
    try:
        for member in group.members.values():
            subscription = read_subscription(member.metadata(protocol))
            assigned = _free_partitions(converted, member.assignment, topics)
            converted.put(
                ConsumerMember(
                    member_id=member.member_id,
                    member_epoch=group.generation,
                    previous_member_epoch=group.generation,
                    instance_id=member.instance_id,
                    rack_id=subscription.rack_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    subscribed_topics=frozenset(subscription.topics),
                    assigned=assigned,
                    classic=ClassicTraits(member.session_timeout_ms, member.protocols),
                )
            )
            converted.target[member.member_id] = assigned
    except Malformed as error:
        raise Refused(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id}: the embedded consumer protocol is malformed: {error}",
        ) from error
    return converted


def to_classic(
    group: ConsumerGroup, leaving_id: str, joining: ConsumerMember | None, topics: Topics, now_ms: int
) -> tuple[ClassicGroup, dict[str, bytes]]:
    """Convert the group, without the member that leaves: stable, with the epoch as generation. Also return the assignments."""
    classic = ClassicGroup(
        group.group_id,
        state=STABLE,
        state_timestamp_ms=now_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
    )
    members = [member for member_id, member in group.members.items() if member_id != leaving_id]
    if joining is not None:
        members.append(joining)
    for member in members:
        assert member.classic is not None
        classic.add(
            ClassicMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocols=member.classic.protocols,
            ),
            None,
        )
    protocol = classic.protocol = classic.select_protocol()
    assignments: dict[str, bytes] = {}
    for classic_member in classic.members.values():
        is_joining = joining is not None and classic_member.member_id == joining.member_id
        source_id = leaving_id if is_joining else classic_member.member_id
        version = subscription_version(classic_member.metadata(protocol))
        assignments[classic_member.member_id] = write_assignment(group.target.get(source_id, EMPTY), topics, version)
    return classic, assignments


# -- subscriptions and assignments in the clients' format
# ------------------------------------------------------------------------------------


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    return codec.decode_versioned(ConsumerProtocolSubscription, metadata, newest_known=True)[0]


def subscription_version(metadata: bytes) -> int:
    """Return the highest version of the embedded protocol that both the member and this broker understand."""
    version = int.from_bytes(metadata[:2], "big")
    return min(version, ConsumerProtocolAssignment.MAX_VERSION)


def write_assignment(partitions: Partitions, topics: Topics, version: int) -> bytes:
    named = ((topics.topic_name(topic_id), numbers) for topic_id, numbers in partitions.items())
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=sorted(numbers)) for name, numbers in named if name is not None
        ]
    )
    return codec.encode_versioned(assignment, version)


def by_topic_id(named: Iterable[TopicPartition | OwnedPartition], topics: Topics) -> Partitions:
    found: dict[bytes, frozenset[int]] = {}
    for each in named:
        topic_id = topics.topic_id(each.topic)
        if topic_id is not None and each.partitions:
            found[topic_id] = frozenset(each.partitions)
    return found


def _free_partitions(group: ConsumerGroup, assignment: bytes, topics: Topics) -> Partitions:
    """Return the assigned partitions that no earlier member has: a client-side assignor may assign a partition twice."""
    if not assignment:
        return {}
    read, _ = codec.decode_versioned(ConsumerProtocolAssignment, assignment, newest_known=True)
    found: dict[bytes, frozenset[int]] = {}
    for topic_id, numbers in by_topic_id(read.assigned_partitions, topics).items():
        if free := frozenset(number for number in numbers if (topic_id, number) not in group.owners):
            found[topic_id] = free
    return found
