"""`barnabas pipeline replay`: send dead letters back to the topics that they came from, each once."""

from dataclasses import dataclass

from barnabas.cli._command import UsageError
from barnabas.cli._connection import run
from barnabas.cli._output import say, say_json
from barnabas.client.config import ClientConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Which dead letters to send where."""

    from_topic: str
    to_topic: str | None
    exception_class: str | None
    group: str | None
    from_beginning: bool
    max_records: int | None
    max_replays: int
    dry_run: bool


def replay_letters(config: ClientConfig, letters: Letters, *, json: bool) -> None:
    """Send dead letters back, each once."""
    from barnabas.client import replay as work  # slow: it imports a consumer and a producer

    dry_run = letters.dry_run
    plan = work.ReplayPlan(
        from_topic=letters.from_topic,
        to_topic=letters.to_topic,
        exception_class=letters.exception_class,
        group=letters.group,
        from_beginning=letters.from_beginning,
        limit=letters.max_records,
        replays_max=letters.max_replays,
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
    say(f"{plan.from_topic}: read {report.read} dead letters")
    for topic, count in sorted(report.replayed.items()):
        say(f"  {count} {'would go' if dry_run else 'went'} to {topic}")
    if report.passed_over:
        say(f"  {report.passed_over} are of another exception class")
    if report.given_up:
        say(f"  {report.given_up} came back {plan.replays_max} times or more and stay (--max-replays)")
