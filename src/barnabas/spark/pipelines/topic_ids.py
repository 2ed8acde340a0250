"""Topics that were deleted and made again between two runs of a project.

A checkpoint knows offsets, not which topic they were of. The new topic of the same name has other records at them: where it is
longer than the old one was, a query would leave its first records out in silence. So each run notes the ids of the topics that
its flows read, and the next one compares. A query that runs notices by itself (`reader`).
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
#: A cluster that does not answer is the flows' business: they wait and try again.
_PATIENCE_MS: Final = 5_000


@dataclass(frozen=True)
class TopicRead:
    """A stream of topics in a flow."""

    flow: str
    options: Mapping[str, str]


class TopicMadeAgain(BarnabasError):
    """The message names flow and topic, and says what to do."""


def check(file: Path, reads: Sequence[TopicRead], anew: Collection[str]) -> list[str]:
    """Compare with what the last run noted, and note what is there now; returns warnings.

    `anew`: flows that are to start again. They are noted once they have (`note`): a run that fails before leaves their old
    checkpoints, and the next one must not take those for places in the new topic.
    """
    known, warnings = _known(file), []
    for read in reads:
        if read.flow in anew or (found := _found(read)) is None:
            continue
        before = known.setdefault(read.flow, {})
        for name in sorted(topic for topic, found_id in found.items() if before.get(topic, found_id) != found_id):
            said = (
                f"flow {read.flow} reads topic {name}, which was deleted and made again since the last run: the offsets of its "
                "checkpoint mean other records now"
            )
            if source_options(read.options, streaming=True).fail_on_data_loss:
                raise TopicMadeAgain(
                    f"{said}. --full-refresh of what it writes reads the new topic from its start; with failOnDataLoss=false "
                    "the flow goes on at these offsets"
                )
            warnings.append(said)
        before |= found
    _write(file, known)
    return warnings


def note(file: Path, reads: Sequence[TopicRead], anew: Collection[str]) -> None:
    """The flows `anew` have started again: from now on their checkpoints are of the topics that there are."""
    known = _known(file)
    started: Ids = {}
    for read in reads:
        if read.flow in anew and (found := _found(read)) is not None:
            started.setdefault(read.flow, {}).update(found)
    _write(file, known | started)


def _found(read: TopicRead) -> dict[str, str] | None:
    try:
        return ids_of(read.options)
    except ClientError as error:
        _log.warning("ids of the topics of flow %s are not known: %s", read.flow, error)
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
    """Of the topics that a stream with these options reads, as they are now."""
    options = source_options(given, streaming=True)
    short = {"default.api.timeout.ms": str(_PATIENCE_MS), "request.timeout.ms": str(_PATIENCE_MS)}
    lookup = OffsetLookup(replace(options, kafka={**options.kafka, **short}, fetch_offset_retries=0))
    try:
        topics = {partition.topic for partition in lookup.partitions(required=False)}
        return {name: found.hex() for name, found in lookup.topic_ids().items() if name in topics}
    finally:
        lookup.close()
