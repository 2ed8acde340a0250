"""`barnabas delete-records`: kafka-delete-records.sh."""

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._json_files import entries, field, read_json
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool
from barnabas.client.admin import partitions as admin
from barnabas.client.asynchronous import AsyncClient


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


TOOL = Tool(
    kafka="kafka-delete-records.sh",
    options=(
        *CONNECTION,
        Option(
            "--offset-json-file",
            '{"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}',
            lambda file: parse(read_json(file, option="--offset-json-file")),
            metavar="FILE",
            required=True,
        ),
        JSON,
    ),
    examples=("barnabas delete-records --offset-json-file offsets.json",),
)


@TOOL.main
async def _delete(cluster: AsyncClient, offset_json_file: dict[TopicPartition, int], json: bool) -> int:
    if not json:
        say("Executing records delete operation")
    results = await admin.delete_records(cluster, offset_json_file)
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
        return 1
    return 0
