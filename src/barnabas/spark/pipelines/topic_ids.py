"""Recognises topics that were deleted and created again between two runs of a project.

A checkpoint has offsets, but not the id of the topic. The new topic of the same name has other records at them: if it is
longer than the old one was, a query would leave its first records out without an error. So each run notes the ids of the topics
that its flows read, and the next one compares them. A running query notices by itself (`reader`).
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from barnabas.base.errors import BarnabasError
from barnabas.client.errors import ClientError
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.options import source_options

#: By flow: topics, and their ids in hexadecimal digits.
Ids = dict[str, dict[str, str]]

_log: Final = logging.getLogger("barnabas.spark")
#: How long to ask a cluster for its ids. If it does not answer, the flows themselves wait and try again.
_PATIENCE_MS: Final = 5_000


@dataclass(frozen=True)
class TopicRead:
    """A stream of topics in a flow."""

    flow: str
    options: Mapping[str, str]


class TopicMadeAgain(BarnabasError):
    """A topic was created again. The message names flow and topic, and says what to do."""


def check(file: Path, reads: Sequence[TopicRead], restarted: Collection[str]) -> list[str]:
    """Compare the ids with those of the last run, and note the current ones; return warnings.

    `restarted`: flows that will start again. Their ids are noted once they have (`note`): if the run fails before, their old
    checkpoints remain, and the next run must not use these for the new topic.
    """
    known, warnings = _known(file), []
    for read in reads:
        if read.flow in restarted or (found := _found(read)) is None:
            continue
        before = known.setdefault(read.flow, {})
        for name in sorted(topic for topic, found_id in found.items() if before.get(topic, found_id) != found_id):
            said = (
                f"flow {read.flow} reads topic {name}, which was deleted and made again since the last run: the offsets of its "
                "checkpoint mean other records now"
            )
            if source_options(read.options, streaming=True).fail_on_data_loss:
                raise TopicMadeAgain(
                    f"{said}. --full-refresh of its target reads the new topic from its start; with failOnDataLoss=false "
                    "the flow goes on at these offsets"
                )
            warnings.append(said)
        before |= found
    _write(file, known)
    return warnings


def note(file: Path, reads: Sequence[TopicRead], restarted: Collection[str]) -> None:
    """Note the ids of flows that have started again: from now on their checkpoints belong to the current topics."""
    known = _known(file)
    started: Ids = {}
    for read in reads:
        if read.flow in restarted and (found := _found(read)) is not None:
            started.setdefault(read.flow, {}).update(found)
    _write(file, known | started)


def _found(read: TopicRead) -> dict[str, str] | None:
    try:
        return ids_of(read.options)
    except ClientError as error:
        _log.warning(
            "[flow %s] cannot read the ids of its topics, so a topic created again is not noticed: %s", read.flow, error
        )
        return None


def _known(file: Path) -> Ids:
    found: Ids = json.loads(file.read_text()) if file.exists() else {}
    return found


def _write(file: Path, known: Ids) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(known, indent=1))
    part.replace(file)


def ids_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the topics that a stream with these options reads, as they are now."""
    options = source_options(given, streaming=True)
    short = {"default.api.timeout.ms": str(_PATIENCE_MS), "request.timeout.ms": str(_PATIENCE_MS)}
    lookup = OffsetLookup(replace(options, kafka={**options.kafka, **short}, fetch_offset_retries=0))
    try:
        topics = {partition.topic for partition in lookup.partitions(required=False)}
        return {name: found.hex() for name, found in lookup.topic_ids().items() if name in topics}
    finally:
        lookup.close()
