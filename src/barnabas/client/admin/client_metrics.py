"""Clients that push metrics to their brokers (KIP-714). Only barnabas brokers show them."""

from collections.abc import Collection

from barnabas.base.ids import format_uuid
from barnabas.client.core import ClientCore
from barnabas.client.errors import ClientError, check
from barnabas.client.pushing import BrokerTime, Labels, PushingClient
from barnabas.wire.messages.describe_client_metrics import (
    DescribeClientMetricsRequest,
    DescribeClientMetricsResponse,
    DescribedClient,
)


async def pushing_clients(cluster: ClientCore, metrics: Collection[str] | None = None) -> list[PushingClient]:
    """Ask all brokers for the clients that push to them, and their latest metrics. `metrics` names those that matter."""
    request = DescribeClientMetricsRequest(metrics=None if metrics is None else sorted(metrics))
    brokers = sorted(await cluster.brokers())
    answers = await cluster.io.together(
        [cluster.ask(broker, request, DescribeClientMetricsResponse) for broker in brokers]
    )
    failed = [answer for answer in answers if isinstance(answer, ClientError)]
    answered = {
        broker: answer for broker, answer in zip(brokers, answers, strict=True) if not isinstance(answer, ClientError)
    }
    if failed and not answered:
        raise failed[0]
    newest: dict[bytes, tuple[int, DescribedClient]] = {}
    for broker, answer in answered.items():
        check(answer.error_code, answer.error_message)
        for client in answer.clients:
            known = newest.get(client.client_instance_id)
            # A client that has changed its broker is still known to the former one.
            if known is None or client.pushed_ms_ago < known[1].pushed_ms_ago:
                newest[client.client_instance_id] = broker, client
    return sorted(
        (_client(broker, client) for broker, client in newest.values()),
        key=lambda client: (client.client_id, client.instance_id),
    )


def _client(broker: int, client: DescribedClient) -> PushingClient:
    metrics: dict[str, dict[Labels, float]] = {}
    for series in client.series:
        metrics.setdefault(series.name, {})[tuple((each.key, each.value) for each in series.labels)] = series.value
    return PushingClient(
        instance_id=format_uuid(client.client_instance_id),
        client_id=client.client_id or "",
        software_name=client.software_name,
        software_version=client.software_version,
        principal=client.principal,
        address=client.address,
        broker_id=broker,
        interval_ms=client.interval_ms,
        pushed_ms_ago=client.pushed_ms_ago,
        is_ended=client.is_ended,
        metrics=metrics,
        broker_times={each.api_key: BrokerTime(each.count, each.total_ms, each.waiting_ms) for each in client.requests},
    )
