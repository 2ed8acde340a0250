"""The last known status of a pipeline: a file beside the project, written as it runs, and the lag of its consumer groups."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from barnabas.base.words import LATEST
from barnabas.client.admin.groups import committed_offsets
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.client.errors import ClientError
from barnabas.spark.pipelines.events import Status


def save(file: Path, status: Status) -> None:
    """Write the whole file or nothing: a reader never sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(status.to_json(), indent=1))
    part.replace(file)


def load(file: Path) -> Status | None:
    """Read the status; None if the pipeline has never run."""
    try:
        return Status.from_json(json.loads(file.read_text()))
    except FileNotFoundError:
        return None


def is_running(status: Status) -> bool:
    """Whether the process that wrote the status is alive. A killed run leaves its last state behind."""
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return status.state in ("STARTING", "RUNNING")


@dataclass(frozen=True)
class GroupLag:
    group: str
    bootstrap: str
    #: Records behind the end, over all partitions; None if the cluster does not answer, or knows of no such group.
    lag: int | None
    error: str = ""


async def group_lag(bootstrap: str, group: str, settings: Mapping[str, str]) -> GroupLag:
    """Read the lag. `settings`: the client's, such as how to sign in."""
    config = client_config(bootstrap, settings, client_id="barnabas-pipeline")
    try:
        async with AsyncClient(config) as cluster:
            committed = await committed_offsets(cluster, group)
            if not committed:
                return GroupLag(group, bootstrap, None, "nothing is committed yet")
            ends = await list_offsets(cluster, dict.fromkeys(committed, LATEST))
    except ClientError as error:
        return GroupLag(group, bootstrap, None, str(error))
    return GroupLag(
        group, bootstrap, sum(max(0, ends[p].offset - at.offset) for p, at in committed.items() if p in ends)
    )
