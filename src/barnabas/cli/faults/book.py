"""Faults that other programs ask for, by number: `barnabas fault` and the HTTP endpoint of `barnabas up --faults`.

A request is an object with a `kind` and the fields of that kind. `FaultyCluster`, the engine of `barnabas.testing`, carries it
out.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.base.names import did_you_mean
from barnabas.cli.faults.cluster import FaultyCluster
from barnabas.cli.faults.journal import Fault
from barnabas.cli.local_cluster import ZOOKEEPER, ClusterFailed
from barnabas.client.asynchronous import AsyncClient

#: Faults in the book, until they are cleared.
FAULTS_MAX: Final = 1000
#: How a request names brokers.
_WHERE: Final[dict[str, type]] = {"broker": int, "leader_of": str, "controller": bool}
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The effect of a request."""

    what: str
    fired: Callable[[], int]
    #: Whether it still has an effect.
    holds: Callable[[], bool]
    undo: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: the fields that it takes, besides those that say where, and their types."""

    begin: Callable[["FaultBook", list[int], dict[str, Any]], Begun]
    fields: Mapping[str, type] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    #: Whether it is done at every broker if none is named. Otherwise it takes one broker.
    is_for_all: bool = False
    #: Whether it is done at a broker at all.
    has_broker: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    number: int
    kind: str
    brokers: tuple[int, ...]
    at_s: float
    begun: Begun

    def shown(self) -> dict[str, object]:
        return {
            "id": self.number,
            "kind": self.kind,
            "brokers": list(self.brokers),
            "what": self.begun.what,
            "at": self.at_s,
            "fired": self.begun.fired(),
            "holds": self.begun.holds(),
        }


class FaultBook:
    """Owner: the thread that owns the cluster."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self.cluster = cluster
        self._entries: dict[int, _Entry] = {}
        self._last = 0

    def add(self, request: object) -> dict[str, object]:
        """Begin a fault; return it as `shown` has it. :raises ClusterFailed, ValueError: if it cannot be."""
        if len(self._entries) >= FAULTS_MAX:
            raise ClusterFailed(f"there are {FAULTS_MAX} faults already: clear them")
        name, kind, fields = _checked(request)
        brokers = self._brokers(name, kind, fields)
        if name == "cut-off":
            fields.setdefault("others", [each for each in self.cluster.broker_ids if each not in brokers])
        others: list[int] = fields.get("others", [])
        touched = {*brokers, *others}
        self._refuse_second(name, touched)
        begun = kind.begin(self, brokers, fields)
        self.cluster.journal.clear()  # the entries here say the same
        self._last += 1
        entry = _Entry(number=self._last, kind=name, brokers=tuple(sorted(touched)), at_s=time.time(), begun=begun)
        self._entries[entry.number] = entry
        return entry.shown()

    def shown(self) -> list[dict[str, object]]:
        return [entry.shown() for entry in self._entries.values()]

    def clear(self, number: int | None) -> None:
        """End a fault and forget it; with None all of them, and repair the cluster: everything runs, clocks are right."""
        if number is None:
            for each in self._entries.values():
                if each.kind in ("pause", "pause-zookeeper") and each.begun.holds():
                    each.begun.undo()  # the repair of others waits for them
            self.cluster.repair()
            self.cluster.journal.clear()
            self._entries.clear()
            return
        entry = self._entries.get(number)
        if entry is None:
            known = ", ".join(map(str, self._entries)) or "none"
            raise ValueError(f"there is no fault {number}; there are: {known}")
        if entry.begun.holds():
            entry.begun.undo()
        del self._entries[number]

    # -- where ----------------------------------------------------------------------------------------------------------

    def _brokers(self, name: str, kind: Kind, fields: dict[str, Any]) -> list[int]:
        given = {field: fields.pop(field) for field in _WHERE if field in fields}
        if not kind.has_broker:
            return []
        if len(given) > 1:
            raise ValueError(f"only one of {', '.join(sorted(given))} can say where")
        match given:
            case {"broker": broker}:
                found = [broker]
            case {"leader_of": topic}:
                found = [self._leader(topic)]
            case {"controller": True}:
                found = [self.cluster.controller()]
            case _ if kind.is_for_all:
                members = ((each, self.cluster.member(each)) for each in self.cluster.broker_ids)
                found = [each for each, member in members if member.running and not member.paused]
            case _:
                raise ValueError(f"{name} needs a broker: give broker, leader_of or controller")
        for each in found:
            if not self.cluster.member(each).running:
                raise ClusterFailed(f"broker {each} is down: `barnabas restart {each}` starts it")
            if self.cluster.member(each).paused:
                raise ClusterFailed(f"broker {each} is paused: clear that fault first")
        if not found:
            raise ClusterFailed("no broker runs")
        return found

    def _leader(self, partition: str) -> int:
        topic, colon, number = partition.partition(":")
        if colon and not number.isdecimal():
            raise ValueError(f"leader_of takes TOPIC or TOPIC:PARTITION, not {partition!r}")

        async def look(client: AsyncClient) -> int | None:
            found = (await client.topics([topic])).get(topic)
            partitions = found.partitions if found is not None else ()
            return next((each.leader for each in partitions if each.index == int(number or 0)), None)

        leader = self.cluster.ask(look)
        if leader is None:
            raise ValueError(f"there is no partition {int(number or 0)} of a topic {topic!r}")
        if leader < 0:
            raise ClusterFailed(f"{topic}:{number or 0} has no leader now")
        return leader

    def _refuse_second(self, name: str, brokers: set[int]) -> None:
        """Refuse a state that a broker, or ZooKeeper, is in already: to end one fault would end the other."""
        if name == "fail-api":
            return
        for entry in self._entries.values():
            if entry.kind == name and entry.begun.holds() and (not brokers or brokers.intersection(entry.brokers)):
                raise ClusterFailed(f"fault {entry.number} does that already ({entry.begun.what}): clear it first")


def _checked(request: object) -> tuple[str, Kind, dict[str, Any]]:
    if not isinstance(request, dict):
        raise ValueError('a fault is an object with "kind"')
    fields = {name: value for name, value in request.items() if value is not None}
    name = fields.pop("kind", None)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        hint = did_you_mean(str(name), KINDS) or f"; there are {', '.join(KINDS)}"
        raise ValueError(f"there is no kind of fault {name!r}{hint}")
    types = {**kind.fields, **(_WHERE if kind.has_broker else {})}
    for field_name, value in fields.items():
        if field_name not in types:
            hint = did_you_mean(field_name, types) or f"; it takes {', '.join(sorted(types)) or 'nothing'}"
            raise ValueError(f"{name} does not take {field_name!r}{hint}")
        if type(value) is not types[field_name]:
            raise ValueError(f"{field_name}={value!r} is not {_TYPES[types[field_name]]}")
        if isinstance(value, list) and not all(type(each) is int for each in value):
            raise ValueError(f"{field_name}={value!r} is not a list of brokers")
    for needed in kind.needed:
        if needed not in fields:
            raise ValueError(f"{name} needs {needed}")
    return str(name), kind, fields


_TYPES: Final[dict[type, str]] = {int: "a whole number", str: "text", bool: "true or false", list: "a list"}


# -- the kinds ----------------------------------------------------------------------------------------------------------


def _of(book: FaultBook, brokers: list[int], faults: list[Fault], what: str = "") -> Begun:
    """A fault that lives in the brokers' processes."""
    cluster = book.cluster
    lives = {broker: cluster.pid(broker) for broker in brokers}

    def end() -> None:
        for fault in faults:
            fault.end()

    return Begun(
        what=what or "; ".join(fault.what for fault in faults),
        fired=lambda: sum(fault.fired for fault in faults),
        holds=lambda: any(cluster.member(each).running and cluster.pid(each) == lives[each] for each in brokers),
        undo=end,
    )


def _done(what: str, fired: int = 1) -> Begun:
    """A fault of one moment."""
    return Begun(what=what, fired=lambda: fired, holds=lambda: False, undo=lambda: None)


def _fail_api(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    faults = [book.cluster.fail_api(each, **fields) for each in brokers]
    return _of(book, brokers, faults, f"{_names(brokers)}: {faults[0].what.partition(': ')[2]}")


def _drop_connections(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    dropped = sum(book.cluster.drop_connections(each, **fields) for each in brokers)
    return _done(f"dropped {dropped} connections", dropped)


def _slow_network(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    return _of(book, brokers, [book.cluster.slow_network(each, **fields) for each in brokers])


def _slow_disk(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    return _of(book, brokers, [book.cluster.slow_disk(each, **fields) for each in brokers])


def _cut_off(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    return _of(book, brokers, [book.cluster.cut_off(brokers[0], fields["others"])])


def _be_deaf_to(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    return _of(book, brokers, [book.cluster.be_deaf_to(brokers[0], fields["others"])])


def _fill_disk(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    fault = book.cluster.fill_disk(brokers[0])
    return _restarted_after(book, brokers[0], fault.what, lambda: fault.fired)


def _fail_log_dir(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    path = fields.get("path", str(book.cluster.log_dirs(brokers[0])[0]))
    book.cluster.fail_log_dir(brokers[0], Path(path))
    return _restarted_after(book, brokers[0], f"broker {brokers[0]} has lost {path}", lambda: 1)


def _restarted_after(book: FaultBook, broker: int, what: str, fired: Callable[[], int]) -> Begun:
    """A log directory that went offline stays so until the broker is restarted. A broker without another one ends."""
    pid = book.cluster.pid(broker)
    return Begun(
        what=what,
        fired=fired,
        holds=lambda: book.cluster.pid(broker) == pid,
        undo=lambda: book.cluster.restart(broker),
    )


def _skew_clock(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    for each in brokers:
        book.cluster.skew_clock(each, fields["ms"])

    def right() -> None:
        for each in brokers:
            member = book.cluster.member(each)
            if member.running and not member.paused:
                book.cluster.skew_clock(each, 0)

    begun = _of(book, brokers, [])
    what = f"the wall clock of {_names(brokers)} is wrong by {fields['ms']} ms"
    return Begun(what=what, fired=lambda: 1, holds=begun.holds, undo=right)


def _advance_clock(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    if fields["ms"] <= 0:
        raise ValueError(
            f"ms={fields['ms']} must be above 0: time does not go back; skew-clock does that to the wall clock"
        )
    for each in brokers:
        book.cluster.advance_clock(each, fields["ms"])
    return _done(f"{fields['ms']} ms have passed for {_names(brokers)}")


def _kill(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    [broker] = brokers
    book.cluster.kill(broker)
    return _down(book, broker, f"broker {broker} was killed")


def _tear_write(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    [broker] = brokers
    pid = book.cluster.pid(broker)
    book.cluster.tear_write(broker)

    def has_ended() -> bool:
        return book.cluster.pid(broker) != pid or not book.cluster.member(broker).running

    def back() -> None:
        if book.cluster.member(broker).running:
            book.cluster.kill(broker)
        book.cluster.start_broker(broker)

    what = f"broker {broker} is killed in the middle of its next write"
    return Begun(what=what, fired=lambda: int(has_ended()), holds=lambda: book.cluster.pid(broker) == pid, undo=back)


def _down(book: FaultBook, broker: int, what: str) -> Begun:
    return Begun(
        what=what,
        fired=lambda: 1,
        holds=lambda: not book.cluster.member(broker).running,
        undo=lambda: book.cluster.start_broker(broker),
    )


def _pause(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    [broker] = brokers
    book.cluster.pause(broker)
    return Begun(
        what=f"broker {broker} is paused",
        fired=lambda: 1,
        holds=lambda: book.cluster.member(broker).paused,
        undo=lambda: book.cluster.resume(broker),
    )


def _pause_zookeeper(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    cluster = book.cluster
    if not cluster.members(ZOOKEEPER):
        raise ClusterFailed("this cluster uses another ZooKeeper, which cannot be paused from here")
    cluster.pause_zookeeper()
    paused = [True]

    def resume() -> None:
        paused.clear()
        cluster.resume_zookeeper()

    return Begun(what="ZooKeeper is paused", fired=lambda: 1, holds=lambda: bool(paused), undo=resume)


def _expire_session(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    book.cluster.expire_session(brokers[0])
    return _done(f"the ZooKeeper session of broker {brokers[0]} expired")


def _move_controller(book: FaultBook, brokers: list[int], fields: dict[str, Any]) -> Begun:
    return _done(f"broker {book.cluster.move_controller()} became the controller")


def _names(brokers: list[int]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {', '.join(map(str, brokers))}"


#: The kinds of faults, by the names of the methods of `barnabas.testing.Cluster`.
KINDS: Final[dict[str, Kind]] = {
    "fail-api": Kind(
        _fail_api,
        {
            "api": str,
            "error": str,
            "delay_ms": int,
            "drop": bool,
            "lose_answer": bool,
            "after": int,
            "times": int,
            "client_id": str,
        },
        needed=("api",),
        is_for_all=True,
    ),
    "drop-connections": Kind(_drop_connections, {"client_id": str}, is_for_all=True),
    "slow-network": Kind(_slow_network, {"delay_ms": int}, needed=("delay_ms",), is_for_all=True),
    "slow-disk": Kind(_slow_disk, {"delay_ms": int}, needed=("delay_ms",), is_for_all=True),
    "fill-disk": Kind(_fill_disk),
    "fail-log-dir": Kind(_fail_log_dir, {"path": str}),
    "tear-write": Kind(_tear_write),
    "kill": Kind(_kill),
    "pause": Kind(_pause),
    "cut-off": Kind(_cut_off, {"others": list}),
    "be-deaf-to": Kind(_be_deaf_to, {"others": list}, needed=("others",)),
    "skew-clock": Kind(_skew_clock, {"ms": int}, needed=("ms",), is_for_all=True),
    "advance-clock": Kind(_advance_clock, {"ms": int}, needed=("ms",), is_for_all=True),
    "expire-session": Kind(_expire_session),
    "move-controller": Kind(_move_controller, has_broker=False),
    "pause-zookeeper": Kind(_pause_zookeeper, has_broker=False),
}
