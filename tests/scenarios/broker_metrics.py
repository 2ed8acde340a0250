"""What a broker says of itself to whoever scrapes it."""

import re
import urllib.request

from barnabas.cli.local_cluster import LocalCluster


def metrics_url(cluster: LocalCluster, broker_id: int = 1) -> str:
    """The broker's log names it: `barnabas.metrics.port` is 0 in tests."""
    url: str = re.findall(r"metrics at (\S+)", cluster.log(broker_id))[-1]
    return url


def metrics_of(cluster: LocalCluster, broker_id: int = 1) -> str:
    with urllib.request.urlopen(metrics_url(cluster, broker_id), timeout=60) as answer:
        text: str = answer.read().decode()
    return text
