"""Propose places for replicas and leaders so that brokers are balanced. Pure.

Constraints first: no replica on a drained broker, no two replicas on one broker, and as many racks as possible.
Improvements second: bytes, traffic and replica counts become even on all brokers, by the moves that gain most for the bytes
that they copy. Leaders last, since they move without copying: even in number and traffic on each broker.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition

#: A broker that is at most this share above or below the mean is not changed.
TOLERANCE: Final = 0.1
#: The least gain, as a share of the whole, for which a replica is moved.
_GAIN_MIN: Final = 1e-6


class NoPlace(BarnabasError):
    """There are not enough brokers for the replicas of a partition."""


@dataclass(frozen=True, slots=True)
class Partition:
    #: Begins with the preferred leader.
    replicas: tuple[int, ...]
    bytes: int = 0
    #: Bytes per second written to it.
    rate: float = 0.0


@dataclass(slots=True)
class _Load:
    bytes: float = 0.0
    rate: float = 0.0
    replicas: float = 0.0

    def of(self) -> tuple[float, float, float]:
        return self.bytes, self.rate, self.replicas


@dataclass(frozen=True, slots=True)
class Proposal:
    #: New replicas of the partitions that change; each list begins with the preferred leader.
    targets: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    #: Bytes that will be copied between brokers.
    bytes: int = 0
    #: Replicas that their broker does not have yet.
    moves: int = 0
    #: Partitions whose preferred leader changes.
    leaders: int = 0


def propose(
    partitions: Mapping[TopicPartition, Partition],
    racks: Mapping[int, str | None],
    *,
    drain: Iterable[int] = (),
    moves_max: int | None = None,
    only_drain: bool = False,
) -> Proposal:
    """`racks` has all live brokers. `only_drain`: move only what must move. `moves_max` bounds improvements.

    :raises NoPlace: if a partition has more replicas than there are remaining brokers.
    """
    leaving = frozenset(drain)
    plan = _Plan(partitions, {broker: rack for broker, rack in racks.items() if broker not in leaving})
    plan.place(leaving)
    if not only_drain:
        plan.spread_over_racks()
        plan.even_out(moves_max)
    plan.share_leadership(None if not only_drain else leaving)
    return plan.result()


class _Plan:
    def __init__(self, partitions: Mapping[TopicPartition, Partition], racks: Mapping[int, str | None]) -> None:
        self._partitions = partitions
        self._racks = racks
        self._now = {where: list(partition.replicas) for where, partition in partitions.items()}
        self._loads = {broker: _Load() for broker in racks}
        for where, replicas in self._now.items():
            for broker in replicas:
                self._add(where, broker, 1)
        total = [sum(values) for values in zip(*(self._size(where) for where in partitions), strict=True)] or [0.0] * 3
        counts = [len(partition.replicas) for partition in partitions.values()]
        copies = sum(counts) / len(counts) if counts else 1.0
        #: Bytes, traffic and replicas of each broker if all were equal. At least 1, to avoid division by 0.
        self._means = tuple(max(1.0, value * copies / max(1, len(racks))) for value in total)

    def _size(self, where: TopicPartition) -> tuple[float, float, float]:
        partition = self._partitions[where]
        return float(partition.bytes), partition.rate, 1.0

    def _add(self, where: TopicPartition, broker: int, sign: int) -> None:
        load = self._loads.get(broker)
        if load is not None:
            size = self._size(where)
            load.bytes += sign * size[0]
            load.rate += sign * size[1]
            load.replicas += sign

    def _cost(self, broker: int, extra: Sequence[float] = (0.0, 0.0, 0.0)) -> float:
        """Sum the squares of shares: two brokers at the mean cost less than one at zero and one at twice the mean."""
        load = self._loads[broker].of()
        return sum(
            float(((value + more) / mean) ** 2) for value, more, mean in zip(load, extra, self._means, strict=True)
        )

    def _gain(self, where: TopicPartition, source: int | None, target: int) -> float:
        size = self._size(where)
        gain = self._cost(target) - self._cost(target, size)
        if source is not None and source in self._loads:
            gain += self._cost(source) - self._cost(source, [-each for each in size])
        return gain

    def _move(self, where: TopicPartition, source: int, target: int) -> None:
        replicas = self._now[where]
        replicas[replicas.index(source)] = target
        self._add(where, source, -1)
        self._add(where, target, 1)

    def _rack_crowd(self, replicas: Iterable[int]) -> int:
        """Count replicas that share a rack with another one; each broker without a rack is its own rack."""
        racks = [self._racks.get(broker) or f"broker {broker}" for broker in replicas]
        return len(racks) - len(set(racks))

    def _targets(self, where: TopicPartition, source: int) -> list[int]:
        """Return brokers that could take the replica from `source` and crowd racks no more than any other would."""
        others = [broker for broker in self._now[where] if broker != source]
        free = [broker for broker in self._racks if broker not in others and broker != source]
        crowds = {broker: self._rack_crowd([*others, broker]) for broker in free}
        least = min(crowds.values(), default=0)
        return [broker for broker in free if crowds[broker] == least]

    # -- steps --

    def place(self, leaving: frozenset[int]) -> None:
        """Place the replicas of drained brokers, largest first, because these are the hardest to place well."""
        stranded = [
            (where, broker) for where, replicas in self._now.items() for broker in replicas if broker in leaving
        ]
        for where, broker in sorted(stranded, key=lambda each: (-self._partitions[each[0]].bytes, each)):
            targets = self._targets(where, broker)
            if not targets:
                raise NoPlace(
                    f"{where} has {len(self._now[where])} replicas, and {len(self._racks)} brokers would be left: add a "
                    "broker, or lower its replication factor first"
                )
            self._move(where, broker, max(targets, key=lambda target: (self._gain(where, None, target), -target)))

    def spread_over_racks(self) -> None:
        if len({rack for rack in self._racks.values() if rack}) < 2:
            return
        for where in sorted(self._now):
            while self._improve_racks(where):
                pass

    def _improve_racks(self, where: TopicPartition) -> bool:
        replicas = self._now[where]
        crowd = self._rack_crowd(replicas)
        options = []
        for source in replicas:
            for target in self._targets(where, source):
                after = self._rack_crowd([target if each == source else each for each in replicas])
                if after < crowd:
                    options.append((crowd - after, self._gain(where, source, target), source, target))
        if not options:
            return False
        _, _, source, target = max(options)
        self._move(where, source, target)
        return True

    def even_out(self, moves_max: int | None) -> None:
        """Move one replica at a time away from the most expensive broker, as long as that helps."""
        moved = 0
        settled: set[int] = set()
        while moves_max is None or moved < moves_max:
            loaded = [broker for broker in self._racks if broker not in settled and self._is_above(broker)]
            if not loaded:
                return
            source = max(loaded, key=self._cost)
            best = self._best_move(source)
            if best is None:
                settled.add(source)
                continue
            self._move(best[0], source, best[1])
            settled.clear()
            moved += 1

    def _is_above(self, broker: int) -> bool:
        load = self._loads[broker].of()
        # One replica more or less is no imbalance.
        return any(
            value > mean * (1 + TOLERANCE) and (place < 2 or value >= mean + 1)
            for place, (value, mean) in enumerate(zip(load, self._means, strict=True))
        )

    def _best_move(self, source: int) -> tuple[TopicPartition, int] | None:
        """Return the move with the highest gain for the bytes that it copies."""
        best, best_value = None, 0.0
        for where, replicas in self._now.items():
            if source not in replicas:
                continue
            price = 1.0 + self._partitions[where].bytes / self._means[0]
            for target in self._targets(where, source):
                if self._rack_crowd([target if each == source else each for each in replicas]) > self._rack_crowd(
                    replicas
                ):
                    continue
                gain = self._gain(where, source, target)
                if gain > _GAIN_MIN and gain / price > best_value:
                    best, best_value = (where, target), gain / price
        return best

    def share_leadership(self, only_of: frozenset[int] | None) -> None:
        """Even out leaders and their traffic over brokers by reordering replicas. `only_of`: only partitions led by these
        brokers."""
        led = {broker: [0.0, 0.0] for broker in self._racks}
        for where, replicas in self._now.items():
            if replicas[0] in led:
                _count(led[replicas[0]], self._partitions[where].rate, 1)
        means = [max(1e-9, sum(each[place] for each in led.values()) / max(1, len(led))) for place in (0, 1)]

        def gain(where: TopicPartition, broker: int) -> float:
            source, target = led[self._now[where][0]], led[broker]
            moved = (1.0, self._partitions[where].rate)
            # The sum of squared shares before the move, minus the sum after it.
            return sum(
                2 * more * (a - b - more) / mean**2
                for a, b, more, mean in zip(source, target, moved, means, strict=True)
            )

        movable = [
            where
            for where, partition in self._partitions.items()
            if self._now[where][0] in led and (only_of is None or partition.replicas[0] in only_of)
        ]
        changed = True
        while changed:
            changed = False
            for where in movable:
                replicas = self._now[where]
                others = [broker for broker in replicas[1:] if broker in led]
                best = max(others, key=lambda broker: gain(where, broker), default=None)
                if best is not None and gain(where, best) > _GAIN_MIN:
                    _count(led[replicas[0]], self._partitions[where].rate, -1)
                    _count(led[best], self._partitions[where].rate, 1)
                    at = replicas.index(best)
                    replicas[0], replicas[at] = best, replicas[0]
                    changed = True

    def result(self) -> Proposal:
        changed = {
            where: tuple(replicas)
            for where, replicas in self._now.items()
            if tuple(replicas) != self._partitions[where].replicas
        }
        added = {where: len(set(new) - set(self._partitions[where].replicas)) for where, new in changed.items()}
        return Proposal(
            targets=changed,
            bytes=sum(self._partitions[where].bytes * number for where, number in added.items()),
            moves=sum(added.values()),
            leaders=sum(new[0] != self._partitions[where].replicas[0] for where, new in changed.items()),
        )


def _count(led: list[float], rate: float, sign: int) -> None:
    led[0] += sign
    led[1] += sign * rate
