"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP. Needs the extra `otel`.

OpenTelemetry's own queue and thread send the spans: spans that do not fit into the queue are dropped, without waiting.
"""

import logging
import os
from typing import TYPE_CHECKING, Final

from barnabas import __version__
from barnabas.base.errors import ConfigError
from barnabas.broker.features.tracing.leader import TracedLeader
from barnabas.broker.features.tracing.produce import traced
from barnabas.broker.features.tracing.spans import Span, Tracing
from barnabas.broker.parts.feature import Host, Plugin

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

log = logging.getLogger(__name__)

_PATH: Final = "/v1/traces"
_SEND_EVERY_MS: Final = 1_000
_SEND_TIMEOUT_S: Final = 5


class TracingPlugin(Plugin):
    """Sends the spans that `tracing` creates."""

    def __init__(self, host: Host) -> None:
        """:raises ConfigError: OpenTelemetry is not installed."""
        config, clock = host.context.config, host.context.clock
        cluster_id, broker_id = host.context.cluster_id, host.context.broker_id
        endpoint = config.barnabas_otel_endpoint
        assert endpoint is not None
        self._on_thread = host.on_thread
        self._processor, self._resource = _exporting(endpoint, cluster_id=cluster_id, broker_id=broker_id)
        self.tracing = Tracing(
            cluster_id=cluster_id,
            broker_id=broker_id,
            ratio=config.barnabas_otel_sample_ratio,
            clock=clock,
            emit=self._emit,
        )
        host.pipeline.traces = (*host.pipeline.traces, self.tracing.sent)
        # The event loop's own time only advances between iterations: too coarse for spans.
        host.pipeline.exact_s = clock.monotonic_s
        host.produce.append = traced(host.produce.append, self.tracing)
        host.replication.wrap_leader = lambda leader, endpoint: TracedLeader(endpoint, leader, self.tracing)
        log.info("[tracing] spans of %g of all requests go to %s", config.barnabas_otel_sample_ratio, endpoint)

    def _emit(self, span: Span) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

        sampled = TraceFlags(TraceFlags.SAMPLED)
        parent = None
        if span.parent_id is not None:
            parent = SpanContext(span.trace_id, span.parent_id, is_remote=False, trace_flags=sampled)
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=sampled),
                parent=parent,
                resource=self._resource,
                attributes=dict(span.attributes),
                kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
                start_time=span.start_ns,
                end_time=span.end_ns,
            )
        )

    async def close(self) -> None:
        """Send the remaining spans."""
        await self._on_thread(self._processor.shutdown)


def _exporting(endpoint: str, *, cluster_id: str, broker_id: int) -> "tuple[BatchSpanProcessor, Resource]":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"barnabas.otel.endpoint={endpoint} needs OpenTelemetry: pip install 'barnabas[otel]' ({error})"
        ) from None
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win; so do OTEL_EXPORTER_OTLP_HEADERS and those of certificates.
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "barnabas"),
            "service.version": __version__,
            "service.instance.id": str(broker_id),
            "messaging.kafka.cluster.id": cluster_id,
            "messaging.kafka.broker.id": broker_id,
        }
    )
    url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
    exporter = OTLPSpanExporter(endpoint=url, timeout=_SEND_TIMEOUT_S)
    return BatchSpanProcessor(exporter, schedule_delay_millis=_SEND_EVERY_MS), resource


build = TracingPlugin
