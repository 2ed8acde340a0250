"""`barnabas cluster`: kafka-cluster.sh."""

from typing import Annotated

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Bootstrap, Json
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import UnsupportedVersion, check
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


def command(
    action: Annotated[str, typer.Argument(metavar="cluster-id|unregister", help="What to do.")],
    bootstrap_server: Bootstrap = None,
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="Properties file with settings of the client.")
    ] = None,
    broker_id: Annotated[int | None, typer.Option("--id", "-i", help="With unregister: the broker.")] = None,
    json: Json = False,
) -> None:
    """Print the cluster's id; unregister a broker (KRaft only)."""
    client = options(bootstrap_server, config)
    if action == "cluster-id":
        cluster_id = run(client, _cluster_id)
        if json:
            say_json({"clusterId": cluster_id})
        elif cluster_id is None:
            say("No cluster ID found. The Kafka version is probably too old.")
        else:
            say(f"Cluster ID: {cluster_id}")
    elif action == "unregister":
        if broker_id is None:
            raise UsageError("unregister needs --id, the broker to unregister")
        run(client, lambda cluster: _unregister(cluster, broker_id))
    else:
        raise UsageError(f"{action!r} is not an action; use cluster-id or unregister")


async def _cluster_id(cluster: AsyncClient) -> str | None:
    await cluster.brokers()
    return cluster.image.cluster_id


async def _unregister(cluster: AsyncClient, broker_id: int) -> None:
    try:
        response = await cluster.ask_any(UnregisterBrokerRequest(broker_id=broker_id), UnregisterBrokerResponse)
    except UnsupportedVersion:
        raise UsageError(
            "The target cluster does not support the broker unregistration API. "
            "With ZooKeeper, a broker that stops is unregistered"
        ) from None
    check(response.error_code, response.error_message)
    say(f"Broker {broker_id} is no longer registered.")
