"""`barnabas broker-api-versions`: kafka-broker-api-versions.sh."""

from barnabas.cli._output import say, say_json
from barnabas.cli.tool import CONNECTION, JSON, Tool
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError
from barnabas.client.exchange import BrokerVersions
from barnabas.client.image import Broker
from barnabas.wire.versions import API, INTER_BROKER, KRAFT_ONLY

TOOL = Tool(
    kafka="kafka-broker-api-versions.sh",
    options=(*CONNECTION, JSON),
    examples=("barnabas broker-api-versions",),
)


@TOOL.main
async def _print(cluster: AsyncClient, json: bool) -> None:
    document = []
    for broker_id, broker in sorted((await cluster.brokers()).items()):
        try:
            versions = (await cluster.connection(broker_id)).versions
        except ClientError as error:
            if json:
                document.append({"broker": broker_id, "error": str(error)})
            else:
                say(f"{broker} -> ERROR: {error}")
            continue
        if json:
            document.append(_as_json(broker, versions))
        else:
            say(f"{broker} -> (\n\t" + ",\n\t".join(_lines(versions)) + "\n)")
    if json:
        say_json(document)


def _lines(versions: BrokerVersions) -> list[str]:
    texts: dict[int, str] = {}
    for key, served in versions.apis.items():
        low, high = served
        span = str(low) if low == high else f"{low} to {high}"
        known = API.get(key)
        if known is None:
            texts[key] = f"UNKNOWN({key}): {span}"
            continue
        if known.max_version < low:
            usable = "[unusable: node too new]"
        elif high < known.min_version:
            usable = "[unusable: node too old]"
        else:
            usable = f"[usable: {min(high, known.max_version)}]"
        texts[key] = f"{known.name}({key}): {span} {usable}"
    for key, api in API.items():
        if key not in texts and key not in INTER_BROKER and key not in KRAFT_ONLY:
            texts[key] = f"{api.name}({key}): UNSUPPORTED"
    return [texts[key] for key in sorted(texts)]


def _as_json(broker: Broker, versions: BrokerVersions) -> dict[str, object]:
    return {
        "broker": broker.id,
        "host": broker.host,
        "port": broker.port,
        "apis": [
            {
                "key": key,
                "name": API[key].name if key in API else None,
                "minVersion": served.min_version,
                "maxVersion": served.max_version,
            }
            for key, served in sorted(versions.apis.items())
        ],
    }
