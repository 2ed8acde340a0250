"""`barnabas log-dirs`: kafka-log-dirs.sh. Its output was always JSON; `--json` only leaves out the prose."""

import json as json_module
from typing import Annotated

import typer

from barnabas.base.errors import ErrorCode
from barnabas.cli._tool import Bootstrap, CommandConfig, Json, UsageError, commas, options, parse_number, run, say
from barnabas.client.admin.partitions import describe_log_dirs
from barnabas.client.asynchronous import AsyncClient


def command(
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    describe: Annotated[bool, typer.Option("--describe", help="Describe log directories.")] = False,
    topic_list: Annotated[str, typer.Option("--topic-list", metavar="T1,T2", help="Only these topics.")] = "",
    broker_list: Annotated[str, typer.Option("--broker-list", metavar="0,1,2", help="Only these brokers.")] = "",
    json: Json = False,
) -> None:
    """Describe log directories and the replicas in them."""
    if not describe:
        raise UsageError('Missing required argument "[describe]"')
    topics = {topic for topic in topic_list.split(",") if topic}
    brokers = [parse_number(text, what="--broker-list") for text in broker_list.split(",") if text]
    config = options(bootstrap_server, command_config)
    run(config, lambda cluster: _describe(cluster, brokers, topics, json))


async def _describe(cluster: AsyncClient, wanted: list[int], topics: set[str], json: bool) -> None:
    alive = sorted(await cluster.brokers())
    missing = [broker for broker in wanted if broker not in alive]
    if missing:
        raise UsageError(
            f"The given brokers do not exist from --broker-list: {commas(missing)}. "
            f"Current existent brokers: {commas(alive)}"
        )
    if not json:
        say("Querying brokers for log directories information")
    brokers = []
    for broker in sorted(set(wanted)) or alive:
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
                    if not topics or topic.name in topics
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
