"""The `simple` assignor of share groups: every partition has a member, and several have it if there are more members.

With P partitions and M members, each partition is shared by ceil(M / P) members, and the members' numbers of partitions differ
by one at most. Members keep as many of their partitions as that allows. In a group with different subscriptions this holds for
each topic on its own, as in Kafka.
"""

import heapq
from collections.abc import Mapping, Sequence

from barnabas.broker.groups.assignors.spec import Assignment, MemberSpec

#: A partition: topic id and number.
_Place = tuple[bytes, int]


def assign_simple(members: Mapping[str, MemberSpec], assignable: Mapping[bytes, frozenset[int]]) -> Assignment:
    """`assignable`: the partitions that members may get, by topic id."""
    assigned: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
    if len({member.topics for member in members.values()}) <= 1:
        subscribed = sorted({topic_id for member in members.values() for topic_id in member.topics})
        parts = [(sorted(members), subscribed)]
    else:
        subscribers: dict[bytes, list[str]] = {}
        for member_id in sorted(members):
            for topic_id in members[member_id].topics:
                subscribers.setdefault(topic_id, []).append(member_id)
        parts = [(subscribers[topic_id], [topic_id]) for topic_id in sorted(subscribers)]
    for member_ids, topic_ids in parts:
        places = [(topic_id, number) for topic_id in topic_ids for number in sorted(assignable.get(topic_id, ()))]
        if not places or not member_ids:
            continue
        held = {member_id: _current(members[member_id], topic_ids, assignable) for member_id in member_ids}
        _Sharing(member_ids, places, held).run()
        for member_id in member_ids:
            for topic_id, number in sorted(held[member_id]):
                assigned[member_id].setdefault(topic_id, set()).add(number)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
        for member_id, topics in assigned.items()
    }


def _current(member: MemberSpec, topic_ids: Sequence[bytes], assignable: Mapping[bytes, frozenset[int]]) -> set[_Place]:
    return {
        (topic_id, number)
        for topic_id in topic_ids
        for number in member.current.get(topic_id, frozenset()) & assignable.get(topic_id, frozenset())
    }


class _Sharing:
    """Shares these places among members who subscribe to all of them. `held` is where each place is now, and is changed."""

    def __init__(self, member_ids: Sequence[str], places: Sequence[_Place], held: dict[str, set[_Place]]) -> None:
        self.held = held
        self.places = places
        #: Members of a place, and in the end of each.
        self.sharing = -(-len(member_ids) // len(places))
        base, extra = divmod(self.sharing * len(places), len(member_ids))
        # The members with most partitions may have one more than the others: that way they lose least.
        by_load = sorted(member_ids, key=lambda member_id: (-len(held[member_id]), member_id))
        self.quota = {member_id: base + (at < extra) for at, member_id in enumerate(by_load)}
        self.holders: dict[_Place, set[str]] = {place: set() for place in places}
        for member_id, mine in held.items():
            for place in mine:
                self.holders[place].add(member_id)

    def run(self) -> None:
        for place in self.places:
            surplus = len(self.holders[place]) - self.sharing
            if surplus > 0:
                for member_id in sorted(self.holders[place], key=lambda each: (-self._excess(each), each))[:surplus]:
                    self._take(member_id, place)
        for member_id in self.held:
            excess = self._excess(member_id)
            if excess > 0:
                # Others may have these places, too: those with most members can best do without this one.
                order = sorted(self.held[member_id], key=lambda place: (-len(self.holders[place]), place))
                for place in order[:excess]:
                    self._take(member_id, place)
        self._fill()

    def _fill(self) -> None:
        free = [(self._excess(member_id), member_id) for member_id in self.held if self._excess(member_id) < 0]
        heapq.heapify(free)
        for place in self.places:
            passed: list[tuple[int, str]] = []
            while len(self.holders[place]) < self.sharing:
                entry = heapq.heappop(free)
                excess, member_id = entry
                if member_id not in self.holders[place]:
                    self._give(member_id, place)
                elif free:
                    passed.append(entry)
                    continue
                else:
                    # Only members that have this place are short of one. Such a member gets another one, and the member from
                    # whom it comes gets this place.
                    passed.append(entry)
                    excess, member_id = passed.pop(0)
                    self._exchange(member_id, place)
                if excess + 1 < 0:
                    heapq.heappush(free, (excess + 1, member_id))
            for entry in passed:
                heapq.heappush(free, entry)

    def _exchange(self, short_id: str, place: _Place) -> None:
        for member_id in self.held:
            if place not in self.held[member_id] and (spare := sorted(self.held[member_id] - self.held[short_id])):
                self._take(member_id, spare[0])
                self._give(short_id, spare[0])
                self._give(member_id, place)
                return
        raise AssertionError("every member has the place, so it has no member too few")

    def _excess(self, member_id: str) -> int:
        return len(self.held[member_id]) - self.quota[member_id]

    def _take(self, member_id: str, place: _Place) -> None:
        self.held[member_id].discard(place)
        self.holders[place].discard(member_id)

    def _give(self, member_id: str, place: _Place) -> None:
        self.held[member_id].add(place)
        self.holders[place].add(member_id)
