"""Requests: those that are waiting (and for what), and the most recently answered ones with the times of their stages."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from barnabas.broker.replication.hosted import HostedPartitions
from barnabas.broker.runtime.purgatory import Purgatory
from barnabas.broker.runtime.timers import Timer, Timers
from barnabas.broker.server.call import Call
from barnabas.broker.server.connection import Connection
from barnabas.broker.server.pipeline import Pipeline

WAITING_MAX: Final = 300
#: Limit per API, so that thousands of Fetches a second do not push out the last JoinGroup.
KEPT_PER_API: Final = 40
#: The trace stops if no client has asked for it for this long.
WANTED_S: Final = 15.0

#: Conditions of requests that are not in a purgatory.
_CONDITIONS: Final = {
    "JoinGroup": "the other members of the group",
    "SyncGroup": "the assignment of the group's leader",
    "Produce": "the verification of a transaction, or the disk",
    "EndTxn": "the record of the decision",
    "ShareAcknowledge": "the share coordinator",
    "ShareFetch": "records from the disk, or the share coordinator",
    "InitProducerId": "a transaction to end, or producer ids",
    "CreateTopics": "leaders of the new partitions",
    "DeleteTopics": "the controller",
}


def waiting(connections: Iterable[Connection], hosted: HostedPartitions, *, now_s: float) -> dict[str, Any]:
    """List all unanswered requests, the oldest first, and delayed operations of the broker itself."""
    calls = [call for each in connections for call in each.in_flight if call.parts is None]
    calls.sort(key=lambda call: call.started_s)
    purgatories = (hosted.produce_purgatory, hosted.fetch_purgatory, hosted.delete_records_purgatory)
    return {
        "purgatories": {each.name: len(each) for each in purgatories},
        "count": len(calls),
        "waiting": [_waiting(call, now_s) for call in calls[:WAITING_MAX]],
        "left_out": max(0, len(calls) - WAITING_MAX),
        "own": _own(hosted.produce_purgatory, calls),
    }


def _waiting(call: Call, now_s: float) -> dict[str, Any]:
    operation = call.waits_in
    expires_s = None if operation is None else operation.expires_s
    waits_for = {"condition": _CONDITIONS.get(call.api.name, "an answer")}
    return {
        **_sender(call),
        "waits_ms": round((now_s - call.started_s) * 1000, 1),
        "expires_in_ms": None if expires_s is None else round(max(0.0, expires_s - now_s) * 1000),
        "waits_for": waits_for if operation is None else operation.waits_for(),
    }


def _own(purgatory: Purgatory, calls: Iterable[Call]) -> list[dict[str, Any]]:
    """List what the coordinators' own writes wait for, limited like the rest of the view."""
    of_clients = {id(call.waits_in) for call in calls}
    own = (each for each in islice(purgatory, WAITING_MAX) if id(each) not in of_clients)
    return [each.waits_for() for each in own]


def _sender(call: Call) -> dict[str, Any]:
    channel = call.channel
    return {
        "api": call.api.name,
        "version": call.api_version,
        "client_id": call.client_id,
        "user": str(channel.principal),
        "host": channel.peer_host,
        "listener": channel.listener_name,
    }


class RequestTrace:
    """The last requests of each API, recorded only while a client asks for them. Owner: the event loop."""

    def __init__(self, pipeline: Pipeline, timers: Timers, now_ms: Callable[[], int]) -> None:
        self._pipeline = pipeline
        self._timers = timers
        self._now_ms = now_ms
        self._kept: dict[str, deque[dict[str, Any]]] = {}
        self._sequence = 0
        self._end: Timer | None = None

    def view(self, api: str | None) -> dict[str, Any]:
        """Return the recorded requests, and start recording if it was off: then the answer is empty."""
        was_on = self._end is not None
        if self._end is not None:
            self._end.cancel()
        self._end = self._timers.call_later(WANTED_S, self._forget)
        if not was_on:
            self._pipeline.traces = (*self._pipeline.traces, self._keep)
        chosen: Mapping[str, Iterable[dict[str, Any]]] = self._kept if api is None else {api: self._kept.get(api, ())}
        return {
            "was_on": was_on,
            "answered": self._sequence,
            "requests": {name: list(kept) for name, kept in chosen.items()},
        }

    def _keep(self, call: Call, sent_s: float) -> None:
        self._sequence += 1
        kept = self._kept.get(call.api.name)
        if kept is None:
            kept = self._kept[call.api.name] = deque(maxlen=KEPT_PER_API)
        local_done_s = min(call.local_done_s or call.answered_s, call.answered_s)
        kept.append(
            {
                **_sender(call),
                "sequence": self._sequence,
                "at_ms": self._now_ms(),
                "request_bytes": call.request_bytes,
                "queue_ms": _ms(call.started_s - call.received_s),
                "local_ms": _ms(local_done_s - call.started_s),
                "remote_ms": _ms(call.answered_s - local_done_s),
                "response_queue_ms": _ms(sent_s - call.answered_s),
                "total_ms": _ms(sent_s - call.received_s),
                "throttle_ms": call.throttle_ms,
            }
        )

    def _forget(self) -> None:
        self._pipeline.traces = tuple(each for each in self._pipeline.traces if each != self._keep)
        self._kept = {}
        self._end = None


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)
