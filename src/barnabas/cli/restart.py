"""`barnabas restart`: restart brokers of a cluster of `barnabas up`."""

from collections.abc import Sequence
from pathlib import Path

from barnabas.cli._output import say
from barnabas.cli.running import the_cluster
from barnabas.cli.status import DATA
from barnabas.cli.tool import Argument, Tool

TOOL = Tool(
    note="See [below](#a-cluster-in-the-background).",
    about="""One after the other, each hands over its partitions, stops, and starts on its data and port. One that is down is
    started.""",
    arguments=(Argument("brokers", "Ids of brokers; all of them if none is given.", int, metavar="N", many=True),),
    options=(DATA,),
    examples=("barnabas restart", "barnabas restart 2"),
)


@TOOL.main
def _restart(brokers: Sequence[int], data: Path | None) -> None:
    cluster = the_cluster(data)
    for each in brokers or range(1, cluster.brokers + 1):
        done = cluster.ask(do="restart", broker=each)
        say(f"broker {each} serves at {done['address']}, process {done['pid']}")
