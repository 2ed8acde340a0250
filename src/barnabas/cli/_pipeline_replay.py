"""`barnabas pipeline replay`: send dead letters back to the topics that they came from, each once."""

from typing import Annotated

import typer

from barnabas.cli._command import UsageError
from barnabas.cli._connection import options, run
from barnabas.cli._output import say, say_json

From = Annotated[str | None, typer.Option("--from", metavar="TOPIC", help="replay: the dead-letter topic.")]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TOPIC", help="replay: where to send them; without it, where each came from."),
]
ExceptionClass = Annotated[
    str | None,
    typer.Option("--exception-class", metavar="TEXT", help="replay: only those whose exception's class contains this."),
]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="NAME", help="replay: the consumer group that remembers how far it got."),
]
FromBeginning = Annotated[bool, typer.Option("--from-beginning", help="replay: also what was replayed before.")]
MaxRecords = Annotated[int | None, typer.Option("--max-records", min=1, metavar="N", help="replay: at most this many.")]
MaxReplays = Annotated[
    int,
    typer.Option(
        "--max-replays", min=1, metavar="N", help="replay: leave records that were replayed this often already."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="replay: say what would be done, and do nothing.")]


def replay_letters(
    from_topic: str | None,
    *,
    to_topic: str | None,
    exception_class: str | None,
    group: str | None,
    from_beginning: bool,
    limit: int | None,
    replays_max: int,
    dry_run: bool,
    bootstrap_server: str | None,
    command_config: str | None,
    json: bool,
) -> None:
    """Send dead letters back, each once."""
    if from_topic is None:
        raise UsageError("replay needs the dead-letter topic: --from TOPIC")
    from barnabas.client import replay as work  # slow: it imports a consumer and a producer

    config = options(bootstrap_server, command_config)
    plan = work.ReplayPlan(
        from_topic=from_topic,
        to_topic=to_topic,
        exception_class=exception_class,
        group=group,
        from_beginning=from_beginning,
        limit=limit,
        replays_max=replays_max,
        dry_run=dry_run,
    )
    try:
        report = run(config, lambda cluster: work.replay(cluster, plan))
    except work.ReplayError as error:
        raise UsageError(str(error)) from error
    if json:
        say_json(
            {
                "read": report.read,
                "replayed": dict(report.replayed),
                "passedOver": report.passed_over,
                "givenUp": report.given_up,
                "dryRun": dry_run,
                "group": plan.group_id,
            }
        )
        return
    say(f"{from_topic}: read {report.read} dead letters")
    for topic, count in sorted(report.replayed.items()):
        say(f"  {count} {'would go' if dry_run else 'went'} to {topic}")
    if report.passed_over:
        say(f"  {report.passed_over} are of another exception class")
    if report.given_up:
        say(f"  {report.given_up} came back {replays_max} times or more and stay (--max-replays)")
