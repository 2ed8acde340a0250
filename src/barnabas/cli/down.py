"""`barnabas down`: stop a cluster of `barnabas up`."""

from pathlib import Path

from barnabas.cli._output import say
from barnabas.cli.running import running_clusters, the_cluster
from barnabas.cli.status import DATA
from barnabas.cli.tool import Option, Tool

TOOL = Tool(
    note="See [below](#a-cluster-in-the-background).",
    about="""It stops as with Ctrl-C: brokers hand over their partitions first. A temporary folder is deleted, the one of --data
    stays.""",
    options=(DATA, Option("--all", "All that run here.", bool)),
    examples=("barnabas down",),
)


@TOOL.main
def _down(data: Path | None, all_: bool) -> None:
    for cluster in running_clusters() if all_ else [the_cluster(data)]:
        cluster.stop()
        say(f"stopped the cluster on {cluster.folder}")
