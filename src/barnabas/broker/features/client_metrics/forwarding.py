"""Forwards the metrics that clients push to an OpenTelemetry collector, by OTLP over HTTP.

Owner: the event loop; requests run on a thread, one at a time. Pushes wait in a queue that is bounded in bytes. While the
collector fails, the oldest ones are dropped: what clients push are totals, so a later push says what an earlier one said.
"""

import asyncio
import logging
from collections import deque
from random import Random
from typing import Final
from urllib.parse import urlsplit

from barnabas.base.backoff import Backoff
from barnabas.base.errors import ConfigError, Malformed
from barnabas.broker.features.client_metrics import otlp
from barnabas.broker.runtime.threads import OnThread
from barnabas.client import web
from barnabas.client.web import WebFailed

log = logging.getLogger(__name__)

SETTING: Final = "barnabas.client.metrics.otlp.endpoint"
_PATH: Final = "/v1/metrics"
_CONTENT: Final = {"Content-Type": "application/x-protobuf", "Accept": "application/x-protobuf"}
#: A broker that stops waits for this long at most while the collector is silent.
_TIMEOUT_MS: Final = 5_000
#: Pushes are joined to requests of about this size.
_REQUEST_BYTES: Final = 1024 * 1024
_RESPONSE_BYTES_MAX: Final = 64 * 1024
_BACKOFF_S: Final = 1.0
_BACKOFF_MAX_S: Final = 60.0
_JITTER: Final = 0.2
#: Status codes after which OTLP lets a client try again.
_RETRIABLE: Final = frozenset({429, 502, 503, 504})


def url_of(endpoint: str) -> str:
    """:raises ConfigError: unless it is an http or https URL."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{SETTING}={endpoint} is not valid: use the URL of a collector, http://collector:4318")
    return endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH


class Forwarder:
    def __init__(self, url: str, *, queue_bytes_max: int, on_thread: OnThread, chance: Random) -> None:
        self._url = url
        self._queue_bytes_max = queue_bytes_max
        self._on_thread = on_thread
        self._backoff = Backoff(_BACKOFF_S, _BACKOFF_MAX_S, lambda: chance.uniform(1 - _JITTER, 1 + _JITTER))
        self._queue: deque[bytes] = deque()
        self._has_work = asyncio.Event()
        #: Bytes of the pushes that wait, and of those that are being sent. At most `queue_bytes_max`.
        self.queue_bytes = 0
        #: Pushes that the collector has taken.
        self.forwarded = 0
        #: Pushes that were dropped: the queue was full, or the collector does not want them.
        self.dropped = 0
        #: Data points that the collector has rejected in pushes that it has taken.
        self.rejected_points = 0
        self.failed_attempts = 0

    def add(self, metrics: bytes) -> None:
        """Forward a push, if there is room for it beside what is being sent."""
        while self._queue and self.queue_bytes + len(metrics) > self._queue_bytes_max:
            self._drop(self._queue.popleft())
        if self.queue_bytes + len(metrics) > self._queue_bytes_max:
            self.dropped += 1
            return
        self.queue_bytes += len(metrics)
        self._queue.append(metrics)
        self._has_work.set()

    def _drop(self, metrics: bytes) -> None:
        self.queue_bytes -= len(metrics)
        self.dropped += 1

    async def run(self) -> None:
        """Send until the task is cancelled."""
        while True:
            await self._has_work.wait()
            batch = self._take()
            if batch:
                await self._send(batch)
            else:
                self._has_work.clear()

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size_bytes = 0
        while self._queue and (not batch or size_bytes + len(self._queue[0]) <= _REQUEST_BYTES):
            batch.append(self._queue.popleft())
            size_bytes += len(batch[-1])
        return batch

    async def _send(self, batch: list[bytes]) -> None:
        # MetricsData and ExportMetricsServiceRequest have the same fields, and joined messages are one with the fields of all.
        body = b"".join(batch)
        while True:
            try:
                answer = await self._on_thread(lambda: self._post(body))
            except WebFailed as failure:
                if failure.status is not None and failure.status not in _RETRIABLE:
                    log.warning("[client metrics] the collector refuses %d pushes: %s", len(batch), failure)
                    self.dropped += len(batch)
                    break
                self.failed_attempts += 1
                pause_s = self._backoff.failed()
                if self._backoff.failures == 1:
                    log.warning("[client metrics] cannot forward, will try again: %s; check %s", failure, SETTING)
                await asyncio.sleep(pause_s)
                continue
            if self._backoff.failures:
                log.info("[client metrics] the collector takes metrics again")
                self._backoff.succeeded()
            self.forwarded += len(batch)
            self._note_rejected(answer)
            break
        self.queue_bytes -= len(body)

    def _post(self, body: bytes) -> bytes:
        return web.load(self._url, body=body, headers=_CONTENT, timeout_ms=_TIMEOUT_MS, bytes_max=_RESPONSE_BYTES_MAX)

    def _note_rejected(self, answer: bytes) -> None:
        try:
            count = otlp.rejected_points(answer)
        except Malformed:
            return  # a collector that answers with text, for example, has taken the metrics all the same
        if count:
            log.warning("[client metrics] the collector has rejected %d data points: see its log", count)
            self.rejected_points += count
