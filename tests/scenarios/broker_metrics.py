"""What a broker says of itself to whoever scrapes it."""

import re
import urllib.request

from barnabas.cli.local_cluster import LocalCluster


def metrics_of(cluster: LocalCluster, broker_id: int = 1) -> str:
    """Of a broker, which tells in its log where they are: `barnabas.metrics.port` is 0 in tests."""
    url = re.findall(r"metrics at (\S+)", cluster.log(broker_id))[-1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text
