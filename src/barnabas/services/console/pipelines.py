"""Spark queries that report their progress (`barnabas.spark.report`), and their dead letters."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition
from barnabas.base.topics import PIPELINES_TOPIC
from barnabas.client.admin.groups import committed_offsets
from barnabas.client.replay import ReplayError, ReplayPlan, replay
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import Refusal, bad_request
from barnabas.services.console.reading import Read, Source, newest_first
from barnabas.services.console.topics import partitions_of
from barnabas.services.console.web import FLAG, NUMBER, TEXT, Call, Endpoint
from barnabas.services.registry.values import json_values

#: Reports to read for the charts: the last minute of ten queries.
_REPORTS_MAX: Final = 500
#: Most bytes of a report, and of all of them: an honest one has about two kilobytes.
_REPORT_BYTES_MAX: Final = 64 * 1024
_REPORTS_BYTES_MAX: Final = 2 * 1024 * 1024
_HISTORY_MAX: Final = 60
_DEAD_LETTER_TOPICS_MAX: Final = 20
#: An idle query reports every ten seconds.
_SILENT_MS: Final = 30_000
#: Figures of a batch that the charts show.
_HISTORY: Final = ("rows_per_second", "batch_ms", "lag")


async def pipelines(call: Call) -> dict[str, Any]:
    cluster = call.cluster
    reports = await cluster.kept("pipelines", 0.9, lambda: _reports(cluster))
    # Any client may write to the topic, as much as it likes.
    queries = await asyncio.to_thread(queries_of, reports, now_ms=int(time.time() * 1000))
    letters = list(dict.fromkeys(topic for query in queries for topic in query["dead_letters"]))
    return {
        "topic": PIPELINES_TOPIC,
        "queries": queries,
        "deadLetters": [await _dead_letters(cluster, topic) for topic in letters[:_DEAD_LETTER_TOPICS_MAX]],
    }


async def _reports(cluster: ConsoleCluster) -> Sequence[Read]:
    """Return reports, the newest first; none if no query has ever reported."""
    if PIPELINES_TOPIC not in (await cluster.image()).topics:
        return []
    source = Source(cluster, PIPELINES_TOPIC, [TopicPartition(PIPELINES_TOPIC, 0)], purpose="pipelines")
    return (await newest_first(source, _REPORTS_MAX)).records


def queries_of(reports: Iterable[Read], *, now_ms: int) -> list[dict[str, Any]]:
    """Return the last report of each query, with the figures of its earlier batches. Any client may write to the topic: records
    that are not reports, or too large for one, are skipped, and so are the oldest if all together are too large."""
    queries: dict[bytes, dict[str, Any]] = {}
    size = 0
    for _, record in reports:
        bytes_here = len(record.key or b"") + len(record.value or b"")
        if bytes_here > _REPORT_BYTES_MAX or size + bytes_here > _REPORTS_BYTES_MAX:
            continue
        size += bytes_here
        report = _report(record.value)
        if report is None or record.key is None:
            continue
        query = queries.setdefault(
            bytes(record.key),
            {
                **report,
                "silent": report["state"] == "running" and now_ms - report["at_ms"] > _SILENT_MS,
                "history": [],
            },
        )
        progress, history = report["progress"], query["history"]
        if progress is not None and len(history) < _HISTORY_MAX and progress.get("batch") != _batch(history):
            history.append({"at_ms": report["at_ms"], "batch": progress.get("batch")} | _figures(progress))
    for query in queries.values():
        query["history"].reverse()
    return sorted(queries.values(), key=lambda query: (query["pipeline"], query["query"]))


def _batch(history: Sequence[dict[str, Any]]) -> Any:
    return history[-1]["batch"] if history else None


def _figures(progress: dict[str, Any]) -> dict[str, Any]:
    return {name: progress.get(name) if isinstance(progress.get(name), int | float) else None for name in _HISTORY}


def _report(value: bytes | None) -> dict[str, Any] | None:
    try:
        report = json_values.read(value or b"")
    except ValueError:
        return None
    if not isinstance(report, dict) or not isinstance(report.get("at_ms"), int):
        return None
    progress = report.get("progress")
    return {
        "pipeline": str(report.get("pipeline", "")),
        "query": str(report.get("query", report.get("query_id", ""))),
        "state": str(report.get("state", "")),
        "error": None if report.get("error") is None else str(report["error"]),
        "at_ms": report["at_ms"],
        "topics": _names(report.get("topics")),
        "dead_letters": _names(report.get("dead_letters")),
        "progress": progress if isinstance(progress, dict) else None,
    }


def _names(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


async def _dead_letters(cluster: ConsoleCluster, topic: str) -> dict[str, Any]:
    """Count the letters in the topic (by offsets, so that transaction markers count), and those that are not replayed yet."""
    try:
        info = await cluster.topic(topic)
        partitions = partitions_of(info)
        starts = await cluster.offsets.starts(partitions, 5.0)
        ends = await cluster.offsets.ends(partitions, 0.9)
        group = ReplayPlan(from_topic=topic).group_id
        done = await cluster.kept(
            ("replayed", topic), 2.0, lambda: committed_offsets(cluster.client, group, partitions)
        )
    except BarnabasError as error:  # any client may write to the topic: the name may be no name of a topic
        return {"topic": topic, "error": str(error), "letters": None, "waiting": None}
    held = [each for each in partitions if each in starts and each in ends]
    waiting = sum(ends[each] - max(starts[each], done[each].offset if each in done else 0) for each in held)
    return {
        "topic": topic,
        "error": None,
        "letters": sum(ends[each] - starts[each] for each in held),
        "waiting": max(0, waiting),
    }


async def replay_letters(call: Call) -> dict[str, Any]:
    """Send dead letters back to their original topics, each once, as `barnabas pipeline replay` does."""
    limit, to_topic, kind = call.body.get("limit"), call.body.get("to"), call.body.get("exceptionClass")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise bad_request("limit is a number above zero")
    if not all(each is None or isinstance(each, str) for each in (to_topic, kind)):
        raise bad_request("to and exceptionClass are texts")
    plan = ReplayPlan(
        from_topic=call.given("from"),
        to_topic=to_topic or None,
        exception_class=kind or None,
        limit=limit,
        dry_run=bool(call.body.get("dryRun", True)),
    )
    try:
        report = await replay(call.cluster.client, plan)
    except ReplayError as error:
        raise Refusal(409, "NOT_REPLAYED", str(error)) from error
    if not plan.dry_run:
        call.cluster.forget()
    return {
        "dryRun": plan.dry_run,
        "read": report.read,
        "replayed": dict(report.replayed),
        "passedOver": report.passed_over,
        "givenUp": report.given_up,
    }


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/pipelines",
        handler=pipelines,
        summary="Spark queries that report their progress, and their dead letters.",
        live_s=1.0,
    ),
    Endpoint(
        method="POST",
        path="/pipelines/replay",
        handler=replay_letters,
        summary="Send dead letters back to their original topics, each once. Only a preview unless dryRun is false.",
        body={
            "type": "object",
            "required": ["from"],
            "properties": {"from": TEXT, "to": TEXT, "exceptionClass": TEXT, "limit": NUMBER, "dryRun": FLAG},
        },
    ),
]
