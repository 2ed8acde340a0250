"""`barnabas down`: the end of a cluster of `barnabas up`."""

from typing import Annotated

import typer

from barnabas.cli.running import running_clusters, the_cluster
from barnabas.cli.status import Data


def command(
    data: Data = None, all_clusters: Annotated[bool, typer.Option("--all", help="All that run here.")] = False
) -> None:
    """Stop a local cluster.

    As Ctrl-C in its terminal does: brokers hand over and leave. A temporary folder goes, the one of `--data` stays.
    """
    for cluster in running_clusters() if all_clusters else [the_cluster(data)]:
        cluster.stop()
        typer.echo(f"stopped the cluster on {cluster.folder}")
