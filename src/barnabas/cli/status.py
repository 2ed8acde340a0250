"""`barnabas status`: the clusters of `barnabas up` that run on this machine."""

import contextlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from barnabas.cli._output import say
from barnabas.cli._words import duration_text
from barnabas.cli.local_cluster import ClusterFailed
from barnabas.cli.running import ClusterEnded, Running, no_cluster, on_folder, running_clusters, the_cluster
from barnabas.cli.tool import JSON, Option, Tool

DATA = Option("--data", "The cluster on this folder, where several run.", Path, metavar="DIR")
TOOL = Tool(
    note="See [below](#a-cluster-in-the-background).",
    about="The exit status is 1 if there is none, or if a broker of one is down.",
    options=(DATA, JSON),
    examples=("barnabas status",),
)


@TOOL.main
def _status(data: Path | None, json: bool) -> None:
    clusters = on_folder(running_clusters(), data)
    if not clusters:
        the_cluster(data)  # raises an error that lists the running clusters
    statuses = []
    for cluster in clusters:
        with contextlib.suppress(ClusterEnded):
            statuses.append((cluster, cluster.ask(do="status")))
    if not statuses:
        raise no_cluster()
    if json:
        import json as encoder

        say(encoder.dumps([{**asdict(cluster), "brokers": brokers} for cluster, brokers in statuses]))
    else:
        say("\n\n".join("\n".join(_lines(cluster, brokers)) for cluster, brokers in statuses))
    down = [broker["id"] for _, brokers in statuses for broker in brokers if broker["pid"] is None]
    if down:
        raise ClusterFailed(
            f"down: {', '.join(f'broker {each}' for each in down)}; `barnabas restart {down[0]}` starts it"
        )


def _lines(cluster: Running, brokers: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"cluster on {cluster.folder}, process {cluster.pid}, up for {duration_text(time.time() - cluster.started_s)}",
        f"  bootstrap  {cluster.bootstrap}",
        f"  ZooKeeper  {cluster.zookeeper}",
    ]
    if cluster.schema_registry:
        lines.append(f"  schemas    {cluster.schema_registry}")
    if cluster.console:
        lines.append(f"  console    {cluster.console}")
    if cluster.secure:
        lines.append(f"  clients    --command-config {Path(cluster.folder, 'security', 'client.properties')}")
    for broker in brokers:
        state = f"process {broker['pid']}" if broker["pid"] else f"DOWN, ended with {broker['exit']}"
        lines.append(f"  broker {broker['id']}   {broker['address']}  {state}  {broker['log']}")
    return lines
