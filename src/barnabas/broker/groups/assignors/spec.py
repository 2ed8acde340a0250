"""The input and the output of an assignor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from barnabas.broker.groups.records import Partitions


@dataclass(frozen=True, slots=True)
class MemberSpec:
    instance_id: str | None
    rack_id: str | None
    #: Topic ids of the member's existing topics.
    topics: frozenset[bytes]
    #: The member's former target, to keep as much of it as possible.
    current: Partitions


@dataclass(frozen=True, slots=True)
class GroupSpec:
    #: Members by id.
    members: Mapping[str, MemberSpec]
    #: Number of partitions by topic id, for every topic of any member.
    partition_counts: Mapping[bytes, int]
    #: Returns the racks with a replica, by topic id and partition.
    racks: Callable[[bytes, int], frozenset[str]]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


#: Partitions by member id, for every member, also without partitions.
Assignment = dict[str, Partitions]
