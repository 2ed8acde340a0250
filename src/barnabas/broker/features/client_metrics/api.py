"""GetTelemetrySubscriptions v0 and PushTelemetry v0 (KIP-714): clients learn which metrics to push, and push them.
DescribeClientMetrics v0, our own, shows them to tools.

Pushed metrics are decompressed and read on a thread, one push at a time: clients choose their size.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.base.chance import random_uuid
from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import format_uuid
from barnabas.base.words import AclOperation
from barnabas.broker.features.client_metrics import otlp
from barnabas.broker.features.client_metrics.broker_times import BrokerTimes
from barnabas.broker.features.client_metrics.instances import ACCEPTED_CODECS, NAME_CHARS_MAX, Client, Instances
from barnabas.broker.features.client_metrics.store import ClientSeries, Store
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.wire.compression import TooLarge, decompress
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_client_metrics import (
    DescribeClientMetricsRequest,
    DescribeClientMetricsResponse,
    DescribedClient,
    DescribedLabel,
    DescribedRequests,
    DescribedSeries,
)
from barnabas.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

#: Metrics may be this many times as large as `telemetry.max.bytes` when they are decompressed.
EXPANSION_MAX: Final = 10
_NO_ID: Final = bytes(16)


class ClientMetricsApi:
    def __init__(
        self,
        context: BrokerContext,
        instances: Instances,
        store: Store,
        times: BrokerTimes,
        on_thread: OnThread,
        forward: Callable[[bytes], None] | None = None,
    ) -> None:
        """`forward` gets each push with the client's attributes."""
        self._context = context
        self._instances = instances
        self._store = store
        self._times = times
        self._on_thread = on_thread
        self._forward = forward
        self._reading = asyncio.Lock()
        self.pushes = 0
        self.failed_pushes = 0

    @serves("GetTelemetrySubscriptions", refusal())
    def get(self, call: Call, request: GetTelemetrySubscriptionsRequest) -> HandlerResult:
        instance_id = random_uuid() if request.client_instance_id == _NO_ID else request.client_instance_id
        instance = self._instances.get(_client(call, instance_id), self._context.now_monotonic_ms())
        subscription = instance.subscription
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=subscription.id,
            accepted_compression_types=list(ACCEPTED_CODECS),
            push_interval_ms=subscription.interval_ms,
            telemetry_max_bytes=self._context.config.telemetry_max_bytes,
            # A client may push to another broker next time: totals stay right there, differences would not.
            delta_temporality=False,
            requested_metrics=list(subscription.metrics),
        )

    @serves("PushTelemetry", refusal())
    async def push(self, call: Call, request: PushTelemetryRequest) -> ApiMessage:
        client = _client(call, request.client_instance_id)
        instance = self._instances.push(
            client,
            self._context.now_monotonic_ms(),
            subscription_id=request.subscription_id,
            is_terminating=request.terminating,
            codec=request.compression_type,
            size_bytes=len(request.metrics),
        )
        if request.metrics:
            codec, metrics = request.compression_type, bytes(request.metrics)
            bytes_max = EXPANSION_MAX * self._context.config.telemetry_max_bytes
            try:
                async with self._reading:
                    attributes = self._attributes(client) if self._forward is not None else None
                    pushed, forwarded = await self._on_thread(lambda: _read(codec, metrics, bytes_max, attributes))
            except Refused as refused:
                self.failed_pushes += 1
                self._instances.failed(instance, refused.code)
                raise
            self._store.add(
                client,
                pushed,
                interval_ms=instance.subscription.interval_ms,
                now_ms=self._context.now_monotonic_ms(),
                is_ended=request.terminating,
            )
            self._times.measure(client)
            if self._forward is not None:
                self._forward(forwarded)
        self.pushes += 1
        return PushTelemetryResponse()

    def _attributes(self, client: Client) -> dict[str, str]:
        """Return what a collector cannot know otherwise, with the names of KIP-714."""
        return {
            "client_instance_id": format_uuid(client.instance_id),
            "client_id": client.client_id or "",
            "client_software_name": client.software_name,
            "client_software_version": client.software_version,
            "client_source_address": client.address,
            "principal": client.principal,
            "cluster_id": self._context.cluster_id,
            "broker_id": str(self._context.broker_id),
        }

    @serves("DescribeClientMetrics", refusal())
    def describe(self, call: Call, request: DescribeClientMetricsRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.DESCRIBE_CONFIGS)
        now_ms = self._context.now_monotonic_ms()
        wanted = None if request.metrics is None else frozenset(request.metrics)
        return DescribeClientMetricsResponse(
            clients=[_described(each, self._times, wanted, now_ms) for each in self._store.current(now_ms)]
        )


def _described(known: ClientSeries, times: BrokerTimes, wanted: frozenset[str] | None, now_ms: int) -> DescribedClient:
    client = known.client
    return DescribedClient(
        client_instance_id=client.instance_id,
        client_id=client.client_id,
        software_name=client.software_name,
        software_version=client.software_version,
        principal=client.principal,
        address=client.address,
        interval_ms=known.interval_ms,
        pushed_ms_ago=now_ms - known.pushed_ms,
        is_ended=known.is_ended,
        series=[
            DescribedSeries(
                name=point.name,
                labels=[DescribedLabel(key=key, value=value) for key, value in point.labels],
                value=point.value,
            )
            for point in known.points.values()
            if wanted is None or point.name in wanted
        ],
        requests=[
            DescribedRequests(api_key=api_key, count=each.count, total_ms=each.total_ms, waiting_ms=each.waiting_ms)
            for api_key, each in sorted(times.of(client).items())
        ],
    )


def _read(
    codec: int, metrics: bytes, bytes_max: int, attributes: Mapping[str, str] | None
) -> tuple[otlp.Pushed, bytes]:
    """Return the series of a push, and with `attributes` what is forwarded to a collector."""
    try:
        data = decompress(codec, metrics, bytes_max)
        return otlp.read(data), b"" if attributes is None else otlp.with_attributes(data, attributes)
    except TooLarge as error:
        raise Refused(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from error
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_RECORD, str(error)) from error


def _client(call: Call, instance_id: bytes) -> Client:
    channel = call.channel
    name, version = channel.software
    return Client(
        instance_id=instance_id,
        client_id=None if call.client_id is None else call.client_id[:NAME_CHARS_MAX],
        software_name=name[:NAME_CHARS_MAX],
        software_version=version[:NAME_CHARS_MAX],
        principal=str(channel.principal)[:NAME_CHARS_MAX],
        address=channel.peer_host,
        port=channel.peer_port,
    )
