"""Requests to the brokers' `/inside`, as the console makes them."""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from barnabas.cli.local_cluster import LocalCluster


def look(cluster: LocalCluster, broker_id: int, view: str = "", **query: object) -> Any:
    status, document = ask(cluster, broker_id, view, **query)
    assert status == 200, document
    return document


def ask(cluster: LocalCluster, broker_id: int, view: str = "", **query: object) -> tuple[int, Any]:
    url = cluster.inside_url(broker_id) + "/inside" + (f"/{view}" if view else "")
    if query:
        url += "?" + urllib.parse.urlencode(query)
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
