"""`barnabas delete-records`: kafka-delete-records.sh."""

from typing import Annotated

import typer

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli._json_files import entries, field, read_json
from barnabas.cli._tool import Bootstrap, CommandConfig, Json, UsageError, options, run, say, say_json
from barnabas.client.admin.partitions import delete_records


def command(
    offset_json_file: Annotated[
        str,
        typer.Option(
            "--offset-json-file",
            metavar="FILE",
            help='{"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}',
        ),
    ],
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete records before given offsets."""
    before = parse(read_json(offset_json_file, option="--offset-json-file"))
    config = options(bootstrap_server, command_config)
    if not json:
        say("Executing records delete operation")
    results = run(config, lambda cluster: delete_records(cluster, before))
    if json:
        say_json(
            [
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "lowWatermark": low if code is ErrorCode.NONE else None,
                    "error": None if code is ErrorCode.NONE else code.name,
                }
                for where, (low, code) in results.items()
            ]
        )
    else:
        say("Records delete operation completed:")
        for where, (low, code) in sorted(results.items()):
            if code is ErrorCode.NONE:
                say(f"partition: {where}\tlow_watermark: {low}")
            else:
                say(f"partition: {where}\terror: {code.name}")
    if any(code is not ErrorCode.NONE for _, code in results.values()):
        raise typer.Exit(1)


def parse(document: dict[str, object]) -> dict[TopicPartition, int]:
    what = "--offset-json-file"
    if document.get("version", 1) != 1:
        raise UsageError(f"Not supported version field value {document['version']}")
    before: dict[TopicPartition, int] = {}
    for entry in entries(document, "partitions", what=what):
        where = TopicPartition(field(entry, "topic", str, what=what), field(entry, "partition", int, what=what))
        if where in before:
            raise UsageError(f"Offset json file contains duplicate topic partitions: {where}")
        before[where] = field(entry, "offset", int, what=what)
    return before
