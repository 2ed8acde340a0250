"""The `range` assignor: gives each member in turn consecutive partitions of each topic.

Members with the same subscription get the same partition numbers of topics with equally many partitions (co-partitioning),
which joins need. Members are ordered: first static members by `group.instance.id`, so that a restart changes nothing, then
others by member id. Racks do not matter: a member's place in the order determines its partitions.
"""

from barnabas.broker.groups.assignors.spec import Assignment, GroupSpec


def assign_range(spec: GroupSpec) -> Assignment:
    order = sorted(
        spec.members,
        key=lambda member_id: (
            spec.members[member_id].instance_id is None,
            spec.members[member_id].instance_id or member_id,
        ),
    )
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in order}
    for topic_id in sorted({topic_id for member in spec.members.values() for topic_id in member.topics}):
        subscribers = [member_id for member_id in order if topic_id in spec.members[member_id].topics]
        quota, extra = divmod(spec.partition_counts[topic_id], len(subscribers))
        start = 0
        for at, member_id in enumerate(subscribers):
            end = start + quota + (at < extra)
            if start < end:
                assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assigned)
