"""The target assignment of a consumer group: the partitions of each member in the current group epoch. Pure."""

from collections.abc import Mapping

from barnabas.broker.groups import records
from barnabas.broker.groups.assignors import ASSIGNORS
from barnabas.broker.groups.assignors.spec import GroupSpec, MemberSpec
from barnabas.broker.groups.consumer_group import EMPTY, ConsumerGroup, ConsumerMember, ResolvedRegex, TopicMetadata
from barnabas.broker.groups.group import Outcome, Topics
from barnabas.broker.groups.records import Partitions


def compute_target(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    *,
    assignor: str,
    regexes: Mapping[str, ResolvedRegex],
    existing: Mapping[str, TopicMetadata],
    topics: Topics,
) -> dict[str, Partitions]:
    """Assign partitions to the members after this change. They keep former partitions, also those under a former id, if
    possible."""
    names = {each.topic_id: name for name, each in existing.items()}
    spec = GroupSpec(
        members={
            member_id: MemberSpec(
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                topics=frozenset(
                    existing[name].topic_id for name in group.topics_of(member, regexes) if name in existing
                ),
                current=target_before(group, member) or EMPTY,
            )
            for member_id, member in members.items()
        },
        partition_counts={each.topic_id: each.partitions for each in existing.values()},
        racks=lambda topic_id, number: topics.racks(names[topic_id], number),
    )
    return ASSIGNORS[assignor](spec)


def target_before(group: ConsumerGroup, member: ConsumerMember) -> Partitions | None:
    """Return the member's former target. A member that replaces a static one has that one's target, even if it had its own."""
    return group.target.get(group.static_members.get(member.instance_id or "", member.member_id))


def write_target(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    target: Mapping[str, Partitions],
    epoch: int,
    out: Outcome,
) -> None:
    """Write the targets that have changed."""
    for member_id, partitions in target.items():
        if target_before(group, members[member_id]) != partitions:
            out.records.append(records.target_assignment(group.group_id, member_id, partitions))
    out.records.append(records.target_epoch(group.group_id, epoch))
