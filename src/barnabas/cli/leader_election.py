"""`barnabas leader-election`: kafka-leader-election.sh."""

from typing import Annotated, Final

import typer

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._json_files import entries, field, read_json
from barnabas.cli._output import say, say_json
from barnabas.cli._tool import Bootstrap, Json
from barnabas.client.admin.partitions import PREFERRED, UNCLEAN, elect_leaders

_TYPES: Final = {"preferred": PREFERRED, "unclean": UNCLEAN}


def command(
    bootstrap_server: Bootstrap = None,
    admin_config: Annotated[
        str | None, typer.Option("--admin.config", metavar="FILE", help="Properties file with settings of the client.")
    ] = None,
    path_to_json_file: Annotated[
        str | None,
        typer.Option("--path-to-json-file", metavar="FILE", help='{"partitions": [{"topic": "foo", "partition": 1}]}'),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic of the partition to elect for.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="With --topic.")] = None,
    all_topic_partitions: Annotated[
        bool, typer.Option("--all-topic-partitions", help="Every partition that is eligible.")
    ] = False,
    election_type: Annotated[str | None, typer.Option("--election-type", help="preferred or unclean.")] = None,
    json: Json = False,
) -> None:
    """Elect preferred or unclean leaders."""
    if election_type is None:
        raise UsageError("Missing required option(s): election-type")
    kind = _TYPES.get(election_type.lower())
    if kind is None:
        raise UsageError(f"--election-type {election_type}: it is preferred or unclean")
    if sum((topic is not None, all_topic_partitions, path_to_json_file is not None)) != 1:
        raise UsageError(
            "One and only one of the following options is required: topic, all-topic-partitions, path-to-json-file"
        )
    if topic is not None and partition is None:
        raise UsageError("Missing required option(s): partition")
    if topic is None and partition is not None:
        raise UsageError("Option partition is only allowed if topic is used")
    partitions: list[TopicPartition] | None = None
    if topic is not None and partition is not None:
        partitions = [TopicPartition(topic, partition)]
    elif path_to_json_file is not None:
        partitions = parse(read_json(path_to_json_file, option="--path-to-json-file"))
    config = options(bootstrap_server, admin_config, {"default.api.timeout.ms": "30000", "request.timeout.ms": "15000"})
    results = run(config, lambda cluster: elect_leaders(cluster, kind, partitions))
    _report(election_type.upper(), results, json)


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
