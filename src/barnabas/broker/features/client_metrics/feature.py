"""Metrics that clients push (KIP-714). Part of every broker: clients send nothing until there is a subscription."""

import asyncio
from collections.abc import Callable

from barnabas.broker.features.client_metrics.api import ClientMetricsApi
from barnabas.broker.features.client_metrics.broker_times import BrokerTimes
from barnabas.broker.features.client_metrics.forwarding import Forwarder, url_of
from barnabas.broker.features.client_metrics.instances import Instances
from barnabas.broker.features.client_metrics.store import Store
from barnabas.broker.parts.feature import Host, Plugin


class ClientMetricsPlugin(Plugin):
    def __init__(self, host: Host) -> None:
        context = host.context
        config = context.config
        self.instances = Instances(lambda: context.dynamic.client_metrics, bytes_max=config.telemetry_max_bytes)
        times = BrokerTimes(host.pipeline)
        self.store = Store(config.barnabas_client_metrics_max_series, on_empty=times.stop)
        self.forwarder = self._forwarder(host)
        self._spawn = host.spawn
        self._forwarding: asyncio.Task[None] | None = None
        forward = None if self.forwarder is None else self.forwarder.add
        self.api = ClientMetricsApi(context, self.instances, self.store, times, host.on_thread, forward)
        self.apis = (self.api,)
        host.metrics_server.pages.append(lambda: self.store.page(context.now_monotonic_ms()))
        self._add_gauges(host)

    @staticmethod
    def _forwarder(host: Host) -> Forwarder | None:
        config = host.context.config
        endpoint = config.barnabas_client_metrics_otlp_endpoint
        if endpoint is None:
            return None
        return Forwarder(
            url_of(endpoint),
            queue_bytes_max=config.barnabas_client_metrics_otlp_queue_bytes,
            on_thread=host.on_thread,
            chance=host.platform.random,
        )

    def start(self) -> None:
        if self.forwarder is not None:
            self._forwarding = self._spawn(self.forwarder.run(), "forward metrics of clients")

    def stop(self) -> None:
        if self._forwarding is not None:
            self._forwarding.cancel()

    def _add_gauges(self, host: Host) -> None:
        instances, store, api, registry = self.instances, self.store, self.api, host.context.registry

        def gauge(name: str, what: str, read: Callable[[], float]) -> None:
            registry.gauge(name, what, read)

        gauge(
            "kafka_server_client_metrics_instance_count",
            "Client instances that ask for subscriptions to metrics.",
            lambda: len(instances.known),
        )
        gauge(
            "kafka_server_client_metrics_throttle_count",
            "Requests of clients before the end of their push interval.",
            lambda: instances.throttled,
        )
        gauge(
            "kafka_server_client_metrics_unknown_subscription_request_count",
            "Pushes with the id of a former subscription.",
            lambda: instances.unknown_subscriptions,
        )
        gauge(
            "kafka_server_client_metrics_plugin_export_count", "Pushes of metrics that were taken.", lambda: api.pushes
        )
        gauge(
            "kafka_server_client_metrics_plugin_error_count",
            "Pushes of metrics that could not be read.",
            lambda: api.failed_pushes,
        )
        gauge(
            "kafka_server_client_metrics_series_count",
            "Series of metrics that clients have pushed.",
            store.series_count,
        )
        gauge(
            "kafka_server_client_metrics_dropped_series_count",
            "Series that were dropped, because of a bound.",
            lambda: store.dropped,
        )
        forwarder = self.forwarder
        if forwarder is None:
            return
        gauge(
            "kafka_server_client_metrics_forwarded_count",
            "Pushes that the collector has taken.",
            lambda: forwarder.forwarded,
        )
        gauge(
            "kafka_server_client_metrics_forward_dropped_count",
            "Pushes that were not forwarded: the queue was full, or the collector refused them.",
            lambda: forwarder.dropped,
        )
        gauge(
            "kafka_server_client_metrics_forward_rejected_points_count",
            "Data points that the collector rejected in pushes that it has taken.",
            lambda: forwarder.rejected_points,
        )
        gauge(
            "kafka_server_client_metrics_forward_failed_attempts_count",
            "Requests to the collector that failed and were repeated.",
            lambda: forwarder.failed_attempts,
        )
        gauge(
            "kafka_server_client_metrics_forward_queue_bytes",
            "Bytes of the pushes that wait for the collector.",
            lambda: forwarder.queue_bytes,
        )


build = ClientMetricsPlugin
