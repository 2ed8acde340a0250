"""`barnabas cluster`: kafka-cluster.sh."""

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import BOOTSTRAP, JSON, Option, Tool
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import UnsupportedVersion, check
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


def _connect(bootstrap_server: str | None, config: str | None) -> ClientConfig:
    return options(bootstrap_server, config)


TOOL = Tool(
    kafka="kafka-cluster.sh",
    connect=_connect,
    options=(
        BOOTSTRAP,
        Option("--config", "Properties file with settings of the client.", metavar="FILE", also=("-c",)),
        Option("--id", "The broker.", int, also=("-i",), name="broker_id"),
        JSON,
    ),
    examples=("barnabas cluster cluster-id",),
)


@TOOL.action("cluster-id", "Print the cluster's id.")
async def _cluster_id(cluster: AsyncClient, json: bool) -> None:
    await cluster.brokers()
    cluster_id = cluster.image.cluster_id
    if json:
        say_json({"clusterId": cluster_id})
    elif cluster_id is None:
        say("No cluster ID found. The Kafka version is probably too old.")
    else:
        say(f"Cluster ID: {cluster_id}")


@TOOL.action("unregister", "Unregister a broker (KRaft only).", needs=("--id",))
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
