"""The time that this broker takes for the requests of clients that push metrics, to show it beside the clients' own.

Owner: the event loop. Only requests of clients that have pushed are measured. Nothing runs before the first push.
"""

from dataclasses import dataclass
from typing import Final

from barnabas.base.recent import Recent
from barnabas.broker.features.client_metrics.instances import NAME_CHARS_MAX, Client
from barnabas.broker.server.call import Call
from barnabas.broker.server.pipeline import Pipeline

#: Clients that are measured at the same time.
CLIENTS_MAX: Final = 1_000

#: Client id and address: connections of a client have no other name in common.
_Key = tuple[str | None, str]


@dataclass(slots=True)
class Requests:
    count: int = 0
    #: From the arrival of a request to the sending of its answer.
    total_ms: float = 0.0
    #: The part of it after the handler has returned: the request waited for records, replicas or members.
    waiting_ms: float = 0.0


class BrokerTimes:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        #: By client, then by API key.
        self._clients: Recent[_Key, dict[int, Requests]] = Recent(CLIENTS_MAX)

    def measure(self, client: Client) -> None:
        """Measure the requests of a client from now on."""
        key = (client.client_id, client.address)
        if self._clients.use(key) is None:
            self._clients.put(key, {})
        if self._sent not in self._pipeline.traces:
            self._pipeline.traces = (*self._pipeline.traces, self._sent)

    def stop(self) -> None:
        """Measure nothing any more: no client pushes."""
        self._clients.clear()
        self._pipeline.traces = tuple(each for each in self._pipeline.traces if each != self._sent)

    def of(self, client: Client) -> dict[int, Requests]:
        return self._clients.get((client.client_id, client.address)) or {}

    def _sent(self, call: Call, now_s: float) -> None:
        name = call.client_id
        key = (name if name is None else name[:NAME_CHARS_MAX], call.channel.peer_host)
        apis = self._clients.get(key)
        if apis is None:
            return
        requests = apis.get(call.api.api_key)
        if requests is None:
            requests = apis[call.api.api_key] = Requests()
        requests.count += 1
        requests.total_ms += (now_s - call.received_s) * 1000
        requests.waiting_ms += max(0.0, call.answered_s - (call.local_done_s or call.answered_s)) * 1000
