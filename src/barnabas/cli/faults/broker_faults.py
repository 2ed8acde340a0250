"""Faults that brokers carry out themselves, in a process of their own or in the test's. Blocking."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from barnabas.base.errors import ErrorCode
from barnabas.cli.faults.asking import Question, T
from barnabas.cli.faults.journal import Fault, Journal, together
from barnabas.cli.faults.names import checked_api, checked_error
from barnabas.client.admin.configs import alter_quotas

#: For each broker a command to its fault points.
_Commands: TypeAlias = dict[int, dict[str, object]]


class BrokerFaults(ABC):
    """What clusters of processes and brokers in the test's process have in common. Brokers have the ids 1..N."""

    journal: Journal
    #: Brokers that only a restart makes as they were.
    _marred: set[int]
    #: Quotas that hold, by their entity; None is the default.
    _throttled: dict[str | None, tuple[str, ...]]

    @property
    @abstractmethod
    def broker_ids(self) -> range: ...

    @abstractmethod
    def log_dirs(self, broker_id: int) -> list[Path]: ...

    @abstractmethod
    def control(self, broker_id: int, **command: object) -> object:
        """One command to a broker's fault points, and its answer."""

    @abstractmethod
    def ask(self, question: Question[T], *, of: int | None = None) -> T: ...

    @abstractmethod
    def _can_obey(self, broker_id: int) -> bool: ...

    @abstractmethod
    def _checked_id(self, broker_id: int) -> int: ...

    @abstractmethod
    def _life(self, broker_id: int) -> Hashable:
        """Return a value that a restart changes; None if the broker cannot be asked now."""

    @abstractmethod
    def _api_fault(self, broker_id: int, what: str, number: object) -> Fault:
        """`number`: of the fault, as the broker has answered."""

    # -- faults that a broker itself carries out --------------------------------------------------------------------------

    def fail_api(
        self,
        broker_id: int,
        api: str,
        *,
        error: str | ErrorCode | None = None,
        delay_ms: int = 0,
        drop: bool = False,
        lose_answer: bool = False,
        after: int = 0,
        times: int | None = None,
        client_id: str = "",
    ) -> Fault:
        """Requests of an API (`Produce`, or `*`) are refused with a Kafka error, delayed, or cost the connection: `drop` before
        they are carried out, `lose_answer` after it, so that the client cannot know.

        `after` requests pass first, then `times` are hit (all of them if None), of clients whose id starts with `client_id`.
        The answer's `fired` says how many were hit.
        """
        checked_api(api)
        name = None if error is None else checked_error(error)
        if name is None and not delay_ms and not drop and not lose_answer:
            raise ValueError("this fault does nothing: give error=, delay_ms=, drop=True or lose_answer=True")
        if (name is not None) + drop + lose_answer > 1:
            raise ValueError("a request has one end: give one of error=, drop=True, lose_answer=True")
        for what, value, least in (("delay_ms", delay_ms, 0), ("after", after, 0), ("times", times, 1)):
            if value is not None and value < least:
                raise ValueError(f"{what}={value} must be at least {least}")
        number = self.control(
            broker_id,
            do="fail_api",
            api=api,
            error=name,
            delay_ms=delay_ms,
            drop=drop,
            lose_answer=lose_answer,
            after=after,
            times=times,
            client_id=client_id,
        )
        effects = (
            f"a delay of {delay_ms} ms" if delay_ms else "",
            name or "",
            "a dropped connection" if drop else "",
            "its answer lost" if lose_answer else "",
        )
        fault = self._api_fault(
            broker_id,
            f"{api} gets {' and '.join(filter(None, effects))}{_how_often(after, times, client_id)}",
            number,
        )
        self.journal.note(fault.what, fault)
        return fault

    def drop_connections(self, broker_id: int, *, client_id: str = "") -> int:
        """The broker closes its connections, or those of clients whose id starts with `client_id`. Returns how many."""
        dropped = self.control(broker_id, do="drop_connections", client_id=client_id)
        assert isinstance(dropped, int)
        self.journal.note(f"broker {broker_id} drops {dropped} connections")
        return dropped

    def cut_off(self, broker_id: int, others: Iterable[int] | None = None) -> Fault:
        """A network partition between a broker and others (all, if not said). ZooKeeper is still reached from both sides."""
        apart = [self._checked_id(other) for other in (others or self.broker_ids) if other != broker_id]
        obeying = [each for each in apart if self._can_obey(each)]
        counters = [self._hits(each, "cut_off") for each in (broker_id, *obeying)]
        self.control(broker_id, do="cut_off", brokers=apart)
        for other in obeying:
            self.control(other, do="cut_off", brokers=[broker_id])
        ends: _Commands = {each: {"do": "cut_off", "brokers": []} for each in (broker_id, *obeying)}
        return self._noted(f"broker {broker_id} is cut off from {apart}", counters, ends)

    def be_deaf_to(self, broker_id: int, others: Iterable[int]) -> Fault:
        """A network that is cut one way: a broker hears nothing from the others, but they hear it."""
        brokers = [self._checked_id(other) for other in others]
        counters = [self._hits(broker_id, "be_deaf_to")]
        self.control(broker_id, do="be_deaf_to", brokers=brokers)
        ends: _Commands = {broker_id: {"do": "be_deaf_to", "brokers": []}}
        return self._noted(f"broker {broker_id} is deaf to {brokers}", counters, ends)

    def slow_network(self, broker_id: int, *, delay_ms: int) -> Fault:
        """Every request to the broker takes longer on its way, and those from it to other brokers. 0 ends it."""
        others = [other for other in self.broker_ids if other != broker_id and self._can_obey(other)]
        counters = [self._hits(broker_id, "slow_network"), *(self._hits(other, "slow_peer") for other in others)]
        self.control(broker_id, do="slow_network", delay_ms=delay_ms)
        for other in others:
            self.control(other, do="slow_peer", broker=broker_id, delay_ms=delay_ms)
        ends: _Commands = {broker_id: {"do": "slow_network", "delay_ms": 0}}
        ends |= {each: {"do": "slow_peer", "broker": broker_id, "delay_ms": 0} for each in others}
        what = f"broker {broker_id} has a network slower by {delay_ms} ms"
        return self._noted(what, counters if delay_ms else [], ends)

    def slow_disk(self, broker_id: int, *, delay_ms: int) -> Fault:
        """Every write and every flush takes longer. 0 ends it."""
        counters = [self._hits(broker_id, "slow_disk")]
        self.control(broker_id, do="slow_disk", delay_ms=delay_ms)
        ends: _Commands = {broker_id: {"do": "slow_disk", "delay_ms": 0}}
        return self._noted(f"broker {broker_id} has a disk slower by {delay_ms} ms", counters if delay_ms else [], ends)

    def fill_disk(self, broker_id: int) -> Fault:
        """Writes fail with "No space left on device": the log directory goes offline, and stays so until a restart."""
        counters = [self._hits(broker_id, "fill_disk")]
        self.control(broker_id, do="fill_disk")
        self._marred.add(broker_id)
        return self._noted(f"broker {broker_id} has a full disk", counters, {broker_id: {"do": "mend_disk"}})

    def fail_log_dir(self, broker_id: int, directory: Path | str) -> None:
        """One of the broker's log directories fails, as if its disk had."""
        known = self.log_dirs(broker_id)
        if Path(directory) not in known:
            has = ", ".join(map(str, known))
            raise ValueError(f"{directory} is no log directory of broker {broker_id}: it has {has}")
        self._order(broker_id, f"lost {directory}", do="fail_log_dir", path=str(directory))
        self._marred.add(broker_id)

    def advance_clock(self, broker_id: int, ms: int) -> None:
        """The broker's clock jumps: retention, lag limits and producer expiry see it; running timers do not."""
        self._order(broker_id, f"has its clock advanced by {ms} ms", do="advance_clock", ms=ms)
        self._marred.add(broker_id)

    def skew_clock(self, broker_id: int, ms: int) -> None:
        """The broker's wall clock is wrong by so much, forward or back: timestamps that it gives are. 0 ends it."""
        self._order(broker_id, f"has a clock that is wrong by {ms} ms", do="skew_clock", ms=ms)

    def _order(self, broker_id: int, what: str, **command: object) -> None:
        self.control(broker_id, **command)
        self.journal.note(f"broker {broker_id} {what}")

    def _hits(self, broker_id: int, kind: str) -> Fault:
        """Count the hits of a kind of fault at one broker from now on, as long as it lives."""
        life = self._life(broker_id)

        def count() -> int:
            counts = self.control(broker_id, do="counts")
            assert isinstance(counts, dict)
            return int(counts.get(kind, 0))

        before = count()
        return Fault(f"broker {broker_id}: {kind}", lambda: count() - before if self._life(broker_id) == life else None)

    def _noted(self, what: str, parts: Sequence[Fault], ends: "_Commands") -> Fault:
        """`parts` count the hits; they are empty where the call ends a fault. `ends`: what ends it at each broker."""

        def end() -> None:
            for broker_id, command in ends.items():
                if self._can_obey(broker_id):
                    self.control(broker_id, **command)

        fault = together(what, parts, end)
        self.journal.note(what, fault if parts else None)
        return fault

    def throttle(
        self,
        *,
        produce_bytes_per_s: float | None = None,
        fetch_bytes_per_s: float | None = None,
        client_id: str | None = None,
    ) -> None:
        """Clients are held to a quota, each or the one with this id: brokers answer late and say so (`throttle_time_ms`)."""
        limits = {"producer_byte_rate": produce_bytes_per_s, "consumer_byte_rate": fetch_bytes_per_s}
        given = {name: float(value) for name, value in limits.items() if value is not None}
        if not given:
            raise ValueError("this fault does nothing: give produce_bytes_per_s= or fetch_bytes_per_s=")
        self._alter_quotas(client_id, given)
        self._throttled[client_id] = tuple(given)
        whom = "each client" if client_id is None else f"client {client_id}"
        self.journal.note(f"{whom} is held to {', '.join(f'{name}={value:g}' for name, value in given.items())}")

    def _alter_quotas(self, client_id: str | None, changes: Mapping[str, float | None]) -> None:
        self.ask(lambda client: alter_quotas(client, {"client-id": client_id}, changes))

    def _end_throttles(self) -> None:
        while self._throttled:
            client_id, names = self._throttled.popitem()
            self._alter_quotas(client_id, dict.fromkeys(names))


def _how_often(after: int, times: int | None, client_id: str) -> str:
    return "".join(
        (
            f", after {after} requests" if after else "",
            f", {times} time{'s' * (times != 1)}" if times is not None else ", always",
            f", for clients {client_id}*" if client_id else "",
        )
    )
