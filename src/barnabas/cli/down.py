"""`barnabas down`: stop a cluster of `barnabas up`."""

from typing import Annotated

import typer

from barnabas.cli.running import running_clusters, the_cluster
from barnabas.cli.status import Data


def command(
    data: Data = None, all_clusters: Annotated[bool, typer.Option("--all", help="All that run here.")] = False
) -> None:
    """Stop a local cluster.

    It stops as with Ctrl-C: brokers hand over their partitions first. A temporary folder is deleted, the one of `--data` stays.
    """
    for cluster in running_clusters() if all_clusters else [the_cluster(data)]:
        cluster.stop()
        typer.echo(f"stopped the cluster on {cluster.folder}")
