"""`barnabas leader-election`: kafka-leader-election.sh."""

from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._json_files import entries, field, read_json
from barnabas.cli._output import say, say_json
from barnabas.cli.tool import BOOTSTRAP, JSON, OneOf, Option, Tool, exactly_one, needs
from barnabas.client.admin.partitions import PREFERRED, UNCLEAN, elect_leaders
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig

_TYPES: Final = {"preferred": PREFERRED, "unclean": UNCLEAN}


def parse(document: dict[str, object]) -> list[TopicPartition]:
    what = "--path-to-json-file"
    found = [
        TopicPartition(field(entry, "topic", str, what=what), field(entry, "partition", int, what=what))
        for entry in entries(document, "partitions", what=what)
    ]
    twice = sorted({where for where in found if found.count(where) > 1})
    if twice:
        raise UsageError(f"Replica election data contains duplicate partitions: {', '.join(map(str, twice))}")
    return found


def _read(path: str) -> list[TopicPartition]:
    return parse(read_json(path, option="--path-to-json-file"))


def _connect(bootstrap_server: str | None, admin_config: str | None) -> ClientConfig:
    return options(bootstrap_server, admin_config, {"default.api.timeout.ms": "30000", "request.timeout.ms": "15000"})


TOOL = Tool(
    kafka="kafka-leader-election.sh",
    connect=_connect,
    options=(
        BOOTSTRAP,
        Option("--admin.config", "Properties file with settings of the client.", metavar="FILE"),
        Option("--path-to-json-file", '{"partitions": [{"topic": "foo", "partition": 1}]}', _read, metavar="FILE"),
        Option("--topic", "Topic of the partition to elect for."),
        Option("--partition", "With --topic.", int),
        Option("--all-topic-partitions", "Every partition that is eligible.", bool),
        Option("--election-type", "Required.", OneOf(*_TYPES)),
        JSON,
    ),
    rules=(
        needs("--topic", "--partition", says="Missing required option(s): partition"),
        needs("--partition", "--topic", says="Option partition is only allowed if topic is used"),
        exactly_one(
            "--topic",
            "--all-topic-partitions",
            "--path-to-json-file",
            says="One and only one of the following options is required: topic, all-topic-partitions, path-to-json-file",
        ),
    ),
    examples=(
        "barnabas leader-election --election-type preferred --all-topic-partitions",
        "barnabas leader-election --election-type unclean --topic orders --partition 0",
    ),
)


@TOOL.action("", "", needs=("--election-type",))
async def _elect(
    cluster: AsyncClient,
    path_to_json_file: list[TopicPartition] | None,
    topic: str | None,
    partition: int | None,
    all_topic_partitions: bool,
    election_type: str,
    json: bool,
) -> None:
    chosen = path_to_json_file
    if not all_topic_partitions and topic is not None and partition is not None:
        chosen = [TopicPartition(topic, partition)]
    _report(election_type.upper(), await elect_leaders(cluster, _TYPES[election_type], chosen), json)


def _report(kind: str, results: dict[TopicPartition, tuple[ErrorCode, str | None]], json: bool) -> None:
    done = sorted(where for where, (code, _) in results.items() if code is ErrorCode.NONE)
    idle = sorted(where for where, (code, _) in results.items() if code is ErrorCode.ELECTION_NOT_NEEDED)
    failed = {where: result for where, result in sorted(results.items()) if where not in done and where not in idle}
    if json:
        say_json(
            {
                "elected": [str(where) for where in done],
                "notNeeded": [str(where) for where in idle],
                "failed": {str(where): {"error": code.name, "message": text} for where, (code, text) in failed.items()},
            }
        )
    else:
        if done:
            names = ", ".join(map(str, done))
            say(f"Successfully completed leader election ({kind}) for partitions {names}")
        if idle:
            say(f"Valid replica already elected for partitions {', '.join(map(str, idle))}")
        for where, (code, text) in failed.items():
            say(f"Error completing leader election ({kind}) for partition: {where}: {code.name}: {text or ''}")
    if failed:
        raise UsageError(f"{len(failed)} replica(s) could not be elected")
