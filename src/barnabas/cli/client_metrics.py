"""`barnabas client-metrics`: kafka-client-metrics.sh."""

from dataclasses import dataclass

from barnabas.base.chance import random_uuid
from barnabas.base.config.client_metrics_config import INTERVAL_MS, MATCH, METRICS, SELECTORS
from barnabas.base.ids import format_uuid
from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json, table
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, exactly_one
from barnabas.client.admin import configs as admin
from barnabas.client.admin.client_metrics import pushing_clients
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.pushing import PushingClient
from barnabas.wire.versions import PRODUCE

_KIND = ConfigResourceType.CLIENT_METRICS

TOOL = Tool(
    note="`--clients` shows which clients are slow, and why; see [metrics of clients](client-metrics.md).",
    kafka="kafka-client-metrics.sh",
    options=(
        *CONNECTION,
        Option("--name", "Name of the subscription."),
        Option("--generate-name", "Make a name up.", bool),
        Option(
            "--metrics",
            "Prefixes of the names of the metrics; * for all; an empty text resets it: none.",
            metavar="M1,M2",
        ),
        Option("--interval", "How often clients push, in milliseconds; an empty text resets it: five minutes."),
        Option(
            "--match",
            f"Which clients, by regular expressions; an empty text resets it: all. K is one of {', '.join(SELECTORS)}.",
            metavar="K1=V1,K2=V2",
        ),
        JSON,
    ),
    about="Clients that support KIP-714 (Java 3.7, librdkafka 2.6 and later) send nothing until a subscription asks them.",
    examples=(
        "barnabas client-metrics --alter --name all --metrics * --interval 60000",
        "barnabas client-metrics --alter --name all --match client_id=orders.*",
        "barnabas client-metrics --delete --name all",
    ),
)


@dataclass(frozen=True, slots=True)
class _Settings:
    metrics: str | None
    interval: str | None
    match: str | None

    def changes(self) -> dict[str, tuple[AlterOperation, str | None]]:
        values = {METRICS: self.metrics, INTERVAL_MS: self.interval, MATCH: self.match}
        return {
            name: (AlterOperation.SET, value) if value else (AlterOperation.DELETE, None)
            for name, value in values.items()
            if value is not None
        }


@TOOL.action(
    "--alter",
    "Create or alter a subscription.",
    rules=(
        exactly_one(
            "--name", "--generate-name", says="One of --name or --generate-name must be specified with --alter."
        ),
    ),
)
async def _alter(cluster: AsyncClient, name: str | None, generate_name: bool, settings: _Settings) -> None:
    chosen = format_uuid(random_uuid()) if generate_name else name or ""
    await admin.alter_configs(cluster, _KIND, chosen, settings.changes())
    say(f"Altered client metrics config for {chosen}.")


@TOOL.action("--delete", "Delete a subscription.", needs=("--name",))
async def _delete(cluster: AsyncClient, name: str) -> None:
    entries = await _own_entries(cluster, name)
    changes: dict[str, tuple[AlterOperation, str | None]] = dict.fromkeys(entries, (AlterOperation.DELETE, None))
    await admin.alter_configs(cluster, _KIND, name, changes)
    say(f"Deleted client metrics config for {name}.")


@TOOL.action("--describe", "Show the settings of one subscription, or of all.")
async def _describe(cluster: AsyncClient, name: str | None, json: bool) -> None:
    names = await admin.list_resources(cluster, _KIND)
    if name is not None and name not in names:
        raise UsageError(f"The client metric resource {name} doesn't exist and doesn't have dynamic config.")
    document = []
    for each in names if name is None else [name]:
        entries = await _own_entries(cluster, each)
        document.append({"name": each, "configs": entries})
        if not json:
            say(f"Client metrics configs for {each} are:")
            for setting, value in entries.items():
                say(f"  {setting}={value}")
    if json:
        say_json(document)


@TOOL.action("--list", "List the subscriptions.")
async def _list(cluster: AsyncClient, json: bool) -> None:
    names = await admin.list_resources(cluster, _KIND)
    if json:
        say_json(names)
        return
    for name in names:
        say(name)


@TOOL.action("--clients", "Show the clients that push metrics, and which of them are slow.")
async def _clients(cluster: AsyncClient, json: bool) -> None:
    from barnabas.services.doctor.checks.clients import METRICS as CHECKED
    from barnabas.services.doctor.checks.clients import request_latency_ms, why_slow
    from barnabas.services.doctor.view import Limits

    clients = await pushing_clients(cluster, None if json else CHECKED)
    if json:
        say_json([_as_json(client) for client in clients])
        return
    if not clients:
        raise UsageError(
            "No client pushes metrics: clients ask for subscriptions when they connect, and every five minutes."
        )
    rows = []
    for client in clients:
        latency_ms, times = request_latency_ms(client), client.broker_times.get(PRODUCE)
        rows.append(
            (
                client.client_id,
                client.address,
                f"{client.software_name} {client.software_version}",
                "-" if latency_ms is None else f"{latency_ms:.1f}",
                "-" if times is None else f"{times.mean_ms:.1f}",
                "; ".join(why_slow(client, Limits())) or "-",
            )
        )
    table(("CLIENT", "ADDRESS", "SOFTWARE", "REQUEST-MS", "BROKER-MS", "SLOW-BECAUSE"), rows)


def _as_json(client: PushingClient) -> dict[str, object]:
    return {
        "clientInstanceId": client.instance_id,
        "clientId": client.client_id,
        "software": client.software_name,
        "version": client.software_version,
        "principal": client.principal,
        "address": client.address,
        "broker": client.broker_id,
        "intervalMs": client.interval_ms,
        "pushedMsAgo": client.pushed_ms_ago,
        "ended": client.is_ended,
        "metrics": [
            {"name": name, "labels": dict(labels), "value": value}
            for name, series in sorted(client.metrics.items())
            for labels, value in sorted(series.items())
        ],
    }


async def _own_entries(cluster: AsyncClient, name: str) -> dict[str, str]:
    found = await admin.describe_configs(cluster, [(_KIND, name)])
    return {
        entry.name: entry.value or ""
        for entry in sorted(found[_KIND, name], key=lambda entry: entry.name)
        if entry.source is ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
    }
