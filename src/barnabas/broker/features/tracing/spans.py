"""Traces of requests, for OpenTelemetry: which requests are traced, and which spans they consist of.

A trace of a Produce is the life of one batch in one partition: in the leader, and in the followers that copy it. Kafka's
protocol has no room for a trace's id between brokers. So the id follows from the batch: every broker computes the same one
from cluster, partition and offset, and decides alike whether the batch is looked at. Other requests have traces of their own.

Nothing here runs unless tracing is on: `Pipeline.traces` is empty then, and the handlers and endpoints are the plain ones.

Owner: the event loop. Spans are created when the answer is sent, from the times that every request records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.ids import TopicPartition
from barnabas.broker.server.call import Call

#: Limit of Produce requests whose answers are not sent yet; beyond it, connections must have been lost.
PRODUCED_MAX: Final = 1_000
#: Difference of the two clocks that triggers a new adjustment.
DRIFT_NS: Final = 50_000_000
_SPREAD: Final = 0x9E3779B97F4A7C15
_64: Final = (1 << 64) - 1

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    #: Nanoseconds since 1970.
    start_ns: int
    end_ns: int
    #: Whether the span stands for a client's request.
    is_server: bool = False
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(slots=True)
class Produced:
    """The traced batches that one Produce appended."""

    call: Call
    #: Trace id, partition, offset.
    batches: list[tuple[int, TopicPartition, int]]
    acks: int
    append_s: tuple[float, float]
    done_s: float


class Tracing:
    def __init__(
        self, *, cluster_id: str, broker_id: int, ratio: float, clock: Clock, emit: Callable[[Span], None]
    ) -> None:
        """`ratio`: the share of batches, and of other requests, to trace. `emit` must not block."""
        self._salt = cluster_id.encode()[:16]
        self._broker_id = broker_id
        self._bound = int(ratio * (1 << 64))
        self._clock = clock
        self._emit = emit
        self._sequence = 0
        self._produced: dict[int, Produced] = {}
        self._offset_ns = self._wall_offset_ns()

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    # -- sampling and names -----------------------------------------------------------------------------------------

    def of_batch(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the trace id of a batch; None if the batch is not traced."""
        trace_id = self._hash(f"{partition.topic}/{partition.partition}/{offset}", 16)
        return trace_id if trace_id & _64 < self._bound else None

    def _of_request(self) -> int | None:
        self._sequence += 1
        # Evenly distributed and cheap: most requests are not traced.
        if (self._sequence * _SPREAD) & _64 >= self._bound:
            return None
        return self._hash(f"{self._broker_id}/{self._clock.now_ms()}/{self._sequence}", 16)

    def _hash(self, text: str, size: int) -> int:
        # Zero means "none" to OpenTelemetry.
        return int.from_bytes(blake2b(text.encode(), digest_size=size, key=self._salt).digest(), "big") or 1

    def _span_id(self, trace_id: int, name: str) -> int:
        return self._hash(f"{trace_id:x}/{name}", 8)

    # -- times ------------------------------------------------------------------------------------------------------

    def _wall_offset_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000 - int(self._clock.monotonic_s() * 1e9)

    def _ns(self, at_s: float) -> int:
        return int(at_s * 1e9) + self._offset_ns

    def _adjust(self) -> None:
        """Adjust rarely: the wall clock has only milliseconds, so that adjusting would shift spans of a trace against each
        other."""
        offset_ns = self._wall_offset_ns()
        if abs(offset_ns - self._offset_ns) > DRIFT_NS:
            self._offset_ns = offset_ns

    # -- requests ---------------------------------------------------------------------------------------------------

    def produced(
        self,
        call: Call,
        placed: Sequence[tuple[TopicPartition, int]],
        *,
        acks: int,
        append_s: tuple[float, float],
        done_s: float,
    ) -> None:
        """Record the outcome of a Produce; its answer is sent next."""
        batches = [
            (trace_id, tp, offset) for tp, offset in placed if (trace_id := self.of_batch(tp, offset)) is not None
        ]
        if not batches:
            return
        if len(self._produced) >= PRODUCED_MAX:
            self._produced.clear()
        self._produced[id(call)] = Produced(call, batches, acks, append_s, done_s)

    def sent(self, call: Call, sent_s: float) -> None:
        """Create the spans of an answer that is being sent."""
        if call.api.api_key == 0:
            found = self._produced.pop(id(call), None) if self._produced else None
            if found is not None and found.call is call:
                self._adjust()
                for batch in found.batches:
                    self._of_produce(found, *batch, sent_s)
            return
        trace_id = self._of_request()
        if trace_id is not None:
            self._adjust()
            started_s = max(call.started_s, call.received_s)
            local_s = call.local_done_s if call.local_done_s else sent_s
            root = self._root(call, call.api.name, trace_id, sent_s, {})
            self._child(trace_id, root, "request queue", call.received_s, started_s)
            self._child(trace_id, root, "handler", started_s, local_s)
            if call.local_done_s:  # else its handler has already sent the answer
                answered_s = max(call.answered_s, local_s)
                self._child(trace_id, root, "wait", local_s, answered_s)
                self._child(trace_id, root, "send", answered_s, sent_s)

    def _of_produce(
        self, found: Produced, trace_id: int, partition: TopicPartition, offset: int, sent_s: float
    ) -> None:
        call = found.call
        where: dict[str, Value] = {
            "messaging.destination.name": partition.topic,
            "messaging.destination.partition.id": str(partition.partition),
            "messaging.kafka.offset": offset,
            "messaging.kafka.acks": found.acks,
        }
        started_s = max(call.started_s, call.received_s)
        append_from_s, append_to_s = found.append_s
        local_s = min(found.done_s, call.local_done_s) if call.local_done_s else found.done_s
        local_s = max(local_s, append_to_s)
        root = self._root(call, f"Produce {partition.topic}", trace_id, sent_s, where)
        self._child(trace_id, root, "request queue", call.received_s, started_s)
        handler = self._child(trace_id, root, "handler", started_s, local_s)
        self._child(trace_id, handler, "append", append_from_s, append_to_s)
        if found.done_s > local_s:
            self._child(trace_id, root, "purgatory", local_s, found.done_s)
        self._child(trace_id, root, "send", max(found.done_s, local_s), sent_s)

    def _root(self, call: Call, name: str, trace_id: int, sent_s: float, more: Mapping[str, Value]) -> int:
        span_id = self.root_of(trace_id)
        attributes: dict[str, Value] = {
            "messaging.system": "kafka",
            "messaging.client.id": call.client_id or "",
            "messaging.kafka.api": call.api.name,
            "messaging.kafka.api.version": call.api_version,
            "messaging.message.envelope.size": call.request_bytes,
            "client.address": call.channel.peer_host,
            "barnabas.listener": call.channel.listener_name,
            **more,
        }
        if call.throttle_ms:
            attributes["barnabas.throttle_ms"] = call.throttle_ms
        start_ns, end_ns = self._ns(call.received_s), self._ns(sent_s)
        self._emit(Span(name, trace_id, span_id, None, start_ns, max(start_ns, end_ns), True, attributes))
        return span_id

    def root_of(self, trace_id: int) -> int:
        """Return the id of a trace's first span, which the leader creates: its followers can compute it, too."""
        return self._span_id(trace_id, "root")

    def _child(
        self,
        trace_id: int,
        parent_id: int,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Mapping[str, Value] | None = None,
    ) -> int:
        span_id = self._span_id(trace_id, f"{self._broker_id}/{name}")
        start_ns = self._ns(start_s)
        self._emit(
            Span(name, trace_id, span_id, parent_id, start_ns, max(start_ns, self._ns(end_s)), False, attributes or {})
        )
        return span_id

    # -- followers --------------------------------------------------------------------------------------------------

    def followed(
        self,
        name: str,
        batches: Sequence[tuple[int, TopicPartition, int]],
        *,
        start_s: float,
        end_s: float,
        leader: int,
    ) -> None:
        """Create spans for work of this broker, as a follower, on these batches."""
        if batches:
            self._adjust()
        for trace_id, partition, offset in batches:
            attributes: dict[str, Value] = {
                "messaging.destination.name": partition.topic,
                "messaging.destination.partition.id": str(partition.partition),
                "messaging.kafka.offset": offset,
                "barnabas.leader": leader,
            }
            self._child(trace_id, self.root_of(trace_id), name, start_s, end_s, attributes)
