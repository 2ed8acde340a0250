"""`barnabas log-dirs`: kafka-log-dirs.sh. Its output was always JSON; `--json` only leaves out the prose."""

import json as json_module
from collections.abc import Sequence

from barnabas.base.errors import ErrorCode
from barnabas.cli._command import UsageError
from barnabas.cli._output import say
from barnabas.cli._parsing import commas
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, numbers, words
from barnabas.client.admin.partitions import describe_log_dirs
from barnabas.client.asynchronous import AsyncClient

TOOL = Tool(
    kafka="kafka-log-dirs.sh",
    options=(
        *CONNECTION,
        Option("--topic-list", "Only these topics.", words, metavar="T1,T2", default=()),
        Option("--broker-list", "Only these brokers.", numbers, metavar="0,1,2", default=()),
        JSON,
    ),
    examples=("barnabas log-dirs --describe --topic-list orders --json",),
)


@TOOL.action("--describe", "Describe log directories.")
async def _describe(cluster: AsyncClient, broker_list: Sequence[int], topic_list: Sequence[str], json: bool) -> None:
    alive = sorted(await cluster.brokers())
    missing = [broker for broker in broker_list if broker not in alive]
    if missing:
        raise UsageError(
            f"The given brokers do not exist from --broker-list: {commas(missing)}. "
            f"Current existent brokers: {commas(alive)}"
        )
    if not json:
        say("Querying brokers for log directories information")
    brokers = []
    for broker in sorted(set(broker_list)) or alive:
        directories = [
            {
                "partitions": [
                    {
                        "partition": f"{topic.name}-{part.partition_index}",
                        "size": part.partition_size,
                        "offsetLag": part.offset_lag,
                        "isFuture": part.is_future_key,
                    }
                    for topic in result.topics
                    if not topic_list or topic.name in topic_list
                    for part in topic.partitions
                ],
                "error": ErrorCode(result.error_code).name if result.error_code else None,
                "logDir": result.log_dir,
            }
            for result in await describe_log_dirs(cluster, broker)
        ]
        brokers.append({"broker": broker, "logDirs": directories})
    if not json:
        say(f"Received log directory information from brokers {commas([entry['broker'] for entry in brokers])}")
    say(json_module.dumps({"brokers": brokers, "version": 1}, separators=(",", ":")))
