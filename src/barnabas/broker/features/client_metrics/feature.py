"""Metrics that clients push (KIP-714). Part of every broker: clients send nothing until there is a subscription."""

from collections.abc import Callable

from barnabas.broker.features.client_metrics.api import ClientMetricsApi
from barnabas.broker.features.client_metrics.broker_times import BrokerTimes
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
        self.api = ClientMetricsApi(context, self.instances, self.store, times, host.on_thread)
        self.apis = (self.api,)
        host.metrics_server.pages.append(lambda: self.store.page(context.now_monotonic_ms()))
        self._add_gauges(host)

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


build = ClientMetricsPlugin
