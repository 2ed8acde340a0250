"""What an assignor is given, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from barnabas.broker.groups.records import Partitions


@dataclass(frozen=True, slots=True)
class MemberSpec:
    instance_id: str | None
    rack_id: str | None
    #: Ids of topics that exist.
    topics: frozenset[bytes]
    #: Its target so far: worth keeping.
    current: Partitions


@dataclass(frozen=True, slots=True)
class GroupSpec:
    #: By member id.
    members: Mapping[str, MemberSpec]
    #: Number of partitions by topic id; every topic of any member is there.
    partition_counts: Mapping[bytes, int]
    #: Racks that have a replica, by topic id and partition.
    racks: Callable[[bytes, int], frozenset[str]]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


#: By member id: every member is there, also those that get nothing.
Assignment = dict[str, Partitions]
