"""The `uniform` assignor: all members get equally many partitions, and keep as many of theirs as possible.

Balance comes first, then stickiness, then racks: if it costs no balance, a free partition goes to a member in a rack with a
replica. (Kafka's own assignor of this name ignores racks by now.) In a group with different subscriptions, balance is reached
as far as the subscriptions allow.
"""

import heapq
from typing import Final

from barnabas.broker.groups.assignors.spec import Assignment, GroupSpec

#: Rounds of the final balancing. Each roughly halves the remaining work, and most groups need one.
BALANCING_ROUNDS_MAX: Final = 16

#: A partition: topic id and number.
_Place = tuple[bytes, int]


def assign_uniform(spec: GroupSpec) -> Assignment:
    if not spec.members:
        return {}
    worker = _Homogeneous(spec) if spec.is_homogeneous else _Heterogeneous(spec)
    worker.run()
    return {member_id: _as_partitions(held) for member_id, held in worker.held.items()}


def _as_partitions(held: set[_Place]) -> dict[bytes, frozenset[int]]:
    topics: dict[bytes, set[int]] = {}
    for topic_id, number in held:
        topics.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(topics[topic_id]) for topic_id in sorted(topics)}


class _Builder:
    """The assignment in progress."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        self.members = sorted(spec.members)
        self.held: dict[str, set[_Place]] = {}
        #: Whether some member names its rack, so that racks matter.
        self.has_racks = any(member.rack_id is not None for member in spec.members.values())
        taken: set[_Place] = set()
        for member_id in self.members:
            member = spec.members[member_id]
            kept = {
                (topic_id, number)
                for topic_id, numbers in member.current.items()
                if topic_id in member.topics
                for number in numbers
                if number < spec.partition_counts[topic_id] and (topic_id, number) not in taken
            }
            taken |= kept
            self.held[member_id] = kept
        topics = sorted({topic_id for member in spec.members.values() for topic_id in member.topics})
        self.unassigned: list[_Place] = [
            (topic_id, number)
            for topic_id in topics
            for number in range(spec.partition_counts[topic_id])
            if (topic_id, number) not in taken
        ]

    def run(self) -> None:
        raise NotImplementedError

    def is_near(self, member_id: str, place: _Place) -> bool:
        """Whether the member's rack has a replica of the partition."""
        rack_id = self.spec.members[member_id].rack_id
        return rack_id is not None and rack_id in self.spec.racks(*place)


class _Homogeneous(_Builder):
    def run(self) -> None:
        total = sum(len(held) for held in self.held.values()) + len(self.unassigned)
        quota, extra = divmod(total, len(self.members))
        # The members with most partitions may have one more than the others: that way they lose least.
        by_load = sorted(self.members, key=lambda member_id: -len(self.held[member_id]))
        room: dict[str, int] = {}
        for at, member_id in enumerate(by_load):
            room[member_id] = quota + (at < extra) - len(self.held[member_id])
            if room[member_id] < 0:
                self._shed(member_id, -room[member_id])
                room[member_id] = 0
        if self.has_racks:
            self._fill_by_rack(room)
        places = iter(self.unassigned)
        for member_id in self.members:
            for _ in range(room[member_id]):
                self.held[member_id].add(next(places))

    def _shed(self, member_id: str, count: int) -> None:
        held = sorted(self.held[member_id], key=lambda place: (not self.is_near(member_id, place), place))
        for place in held[-count:]:
            self.held[member_id].discard(place)
            self.unassigned.append(place)

    def _fill_by_rack(self, room: dict[str, int]) -> None:
        far: list[_Place] = []
        for place in self.unassigned:
            near = [member_id for member_id in self.members if room[member_id] > 0 and self.is_near(member_id, place)]
            if not near:
                far.append(place)
                continue
            member_id = max(near, key=room.__getitem__)
            self.held[member_id].add(place)
            room[member_id] -= 1
        self.unassigned = far


class _Heterogeneous(_Builder):
    def __init__(self, spec: GroupSpec) -> None:
        super().__init__(spec)
        self.subscribers: dict[bytes, list[str]] = {}
        for member_id in self.members:
            for topic_id in spec.members[member_id].topics:
                self.subscribers.setdefault(topic_id, []).append(member_id)
        #: Topics with few subscribers come first: the others have more ways to restore the balance.
        self.order = sorted(self.subscribers, key=lambda topic_id: (len(self.subscribers[topic_id]), topic_id))

    def run(self) -> None:
        waiting: dict[bytes, list[_Place]] = {}
        for place in self.unassigned:
            waiting.setdefault(place[0], []).append(place)
        for topic_id in self.order:
            self._hand_out(topic_id, waiting.get(topic_id, []))
        for _ in range(BALANCING_ROUNDS_MAX):
            moved = [self._balance(topic_id) for topic_id in self.order if len(self.subscribers[topic_id]) > 1]
            if not any(moved):
                return

    def _hand_out(self, topic_id: bytes, places: list[_Place]) -> None:
        heap = [(len(self.held[member_id]), member_id) for member_id in self.subscribers[topic_id]]
        heapq.heapify(heap)
        for place in places:
            load, member_id = heap[0]
            if self.has_racks:
                least = [each for each in heap if each[0] == load]
                load, member_id = min(least, key=lambda each: (not self.is_near(each[1], place), each[1]))
                heap.remove((load, member_id))
                heapq.heapify(heap)
            else:
                heapq.heappop(heap)
            self.held[member_id].add(place)
            heapq.heappush(heap, (load + 1, member_id))

    def _balance(self, topic_id: bytes) -> bool:
        """Move partitions of a topic from the member with most to the one with least, while that improves the balance."""
        owned = {
            member_id: sorted(place for place in self.held[member_id] if place[0] == topic_id)
            for member_id in self.subscribers[topic_id]
        }
        has_moved = False
        while True:
            low = min(owned, key=lambda member_id: (len(self.held[member_id]), member_id))
            donors = [member_id for member_id, places in owned.items() if places]
            if not donors:
                return has_moved
            high = max(donors, key=lambda member_id: (len(self.held[member_id]), member_id))
            if len(self.held[high]) - len(self.held[low]) <= 1:
                return has_moved
            place = max(owned[high], key=lambda each: (self.is_near(low, each), not self.is_near(high, each), each))
            owned[high].remove(place)
            self.held[high].discard(place)
            owned[low].append(place)
            self.held[low].add(place)
            has_moved = True
