"""`barnabas restart`: restart brokers of a cluster of `barnabas up`."""

from typing import Annotated

import typer

from barnabas.cli.running import the_cluster
from barnabas.cli.status import Data


def command(
    broker: Annotated[
        list[int] | None, typer.Argument(metavar="N", help="Ids of brokers; all of them if none is given.")
    ] = None,
    data: Data = None,
) -> None:
    """Restart brokers of a local cluster, one after the other.

    Each hands over its partitions, stops, and starts on its data and port. One that is down is started.
    """
    cluster = the_cluster(data)
    for each in broker or range(1, cluster.brokers + 1):
        done = cluster.ask(do="restart", broker=each)
        typer.echo(f"broker {each} serves at {done['address']}, process {done['pid']}")
