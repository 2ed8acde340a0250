"""Clients that push their metrics (KIP-714): which of them are slow, and why."""

from typing import Any, Final

from barnabas.base.words import ConfigResourceType
from barnabas.client.admin.client_metrics import pushing_clients
from barnabas.client.admin.configs import list_resources
from barnabas.client.errors import UnsupportedVersion
from barnabas.client.pushing import PushingClient
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import not_found
from barnabas.services.console.web import NUMBER, TEXT, Call, Endpoint
from barnabas.services.doctor.checks.clients import METRICS, request_latency_ms, why_slow
from barnabas.services.doctor.view import Limits
from barnabas.wire.versions import PRODUCE

WINDOW_MAX: Final = 500
_EVERY_S: Final = 2.0
_AGE_S: Final = 1.5


async def _clients(cluster: ConsoleCluster) -> list[PushingClient]:
    return await cluster.kept(
        "clients that push", _AGE_S, lambda: pushing_clients(cluster.client, METRICS), paced_s=10.0
    )


async def client_list(call: Call) -> dict[str, Any]:
    search = call.text("search").lower()
    try:
        clients = await _clients(call.cluster)
        subscriptions = await call.cluster.kept(
            "subscriptions of clients",
            _AGE_S,
            lambda: list_resources(call.cluster.client, ConfigResourceType.CLIENT_METRICS),
            paced_s=10.0,
        )
    except UnsupportedVersion:
        return {"total": 0, "start": 0, "slow": 0, "subscriptions": [], "supported": False, "clients": []}
    rows = [_row(each) for each in clients if search in f"{each.client_id} {each.address} {each.software_name}".lower()]
    # Slow clients come first.
    rows.sort(key=lambda row: not row["reasons"])
    start, count = call.number("start", 0), call.number("count", 100, high=WINDOW_MAX)
    return {
        "total": len(rows),
        "start": start,
        "slow": sum(bool(row["reasons"]) for row in rows),
        "subscriptions": subscriptions,
        "supported": True,
        "clients": rows[start : start + count],
    }


def _row(client: PushingClient) -> dict[str, Any]:
    times = client.broker_times.get(PRODUCE)
    return {
        "instance": client.instance_id,
        "client": client.client_id,
        "address": client.address,
        "principal": client.principal,
        "software": client.software_name,
        "version": client.software_version,
        "broker": client.broker_id,
        "pushedMsAgo": client.pushed_ms_ago,
        "ended": client.is_ended,
        "requestMs": request_latency_ms(client),
        "brokerMs": None if times is None else times.mean_ms,
        "brokerWaitingMs": None if times is None else times.mean_ms - times.own_mean_ms,
        "reasons": [] if client.is_ended else why_slow(client, Limits()),
    }


async def client_detail(call: Call) -> dict[str, Any]:
    wanted = call.path["instance"]
    clients = await call.cluster.kept(
        "all metrics of clients", _AGE_S, lambda: pushing_clients(call.cluster.client), paced_s=10.0
    )
    client = next((each for each in clients if each.instance_id == wanted), None)
    if client is None:
        raise not_found(f"no client {wanted} pushes metrics")
    return _row(client) | {
        "metrics": [
            {"name": name, "labels": dict(labels), "value": value}
            for name, series in sorted(client.metrics.items())
            for labels, value in sorted(series.items())
        ]
    }


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/clients",
        handler=client_list,
        summary="Clients that push their metrics, the slow ones first, with the reasons.",
        query={"search": TEXT, "start": NUMBER, "count": NUMBER},
        live_s=_EVERY_S,
    ),
    Endpoint(
        method="GET",
        path="/clients/{instance}",
        handler=client_detail,
        summary="One of these clients, with all its metrics.",
        live_s=_EVERY_S,
    ),
]
