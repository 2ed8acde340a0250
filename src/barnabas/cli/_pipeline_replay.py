"""`barnabas pipeline replay`: dead letters go back to where they came from, each once."""

from typing import Annotated

import typer

from barnabas.cli._tool import Bootstrap, CommandConfig, Json, UsageError, options, run, say, say_json


def command(
    from_topic: Annotated[str, typer.Option("--from", metavar="TOPIC", help="REQUIRED: the dead-letter topic.")],
    to_topic: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Where to send them; without it, where each came from."),
    ] = None,
    exception_class: Annotated[
        str | None,
        typer.Option("--exception-class", metavar="TEXT", help="Only those whose exception's class contains this."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="Consumer group that remembers how far the replay got."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Replay also what was replayed before.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--max-records", min=1, metavar="N", help="Replay at most so many.")
    ] = None,
    replays_max: Annotated[
        int, typer.Option("--max-replays", min=1, metavar="N", help="Leave alone what came back so often already.")
    ] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Send dead letters back, each once."""
    from barnabas.spark.pipelines.replay import ReplayError, ReplayPlan, replay

    config = options(bootstrap_server, command_config)
    plan = ReplayPlan(
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
        report = run(config, lambda cluster: replay(cluster, plan))
    except ReplayError as error:
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
