"""`barnabas fault` and the HTTP endpoint of `barnabas up --faults`, with clients that see what was asked for."""

import json
import urllib.error
import urllib.request
from typing import Any

from confluent_kafka import Producer

from barnabas.cli.running import Running, running_clusters
from barnabas.testing import wait_until
from tests.scenarios.tools.test_up_detached import Run, run, up

__all__ = ["run"]


def send(cluster: Running, value: str) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "client.id": "shop", "retry.backoff.ms": 20, "log_level": 0}
    )
    errors: list[object] = []
    producer.produce("orders", value, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]


def asked(cluster: Running, method: str, path: str = "/faults", fault: object = None, token: str | None = None) -> Any:
    """Return the status and the document."""
    request = urllib.request.Request(
        f"{cluster.faults}{path}",
        method=method,
        headers={"Authorization": f"Bearer {token or cluster.faults_token}"},
        data=None if fault is None else json.dumps(fault).encode(),
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_faults_happen_are_counted_and_end(run: Run) -> None:
    assert up("--brokers", "3", "--faults").returncode == 0
    [cluster] = running_clusters()
    made = run(
        *("topics", "--bootstrap-server", cluster.bootstrap, "--create", "--topic", "orders"),
        *("--replication-factor", "3"),
    )
    assert made.returncode == 0, made.stderr

    def fired() -> dict[int, int]:
        return {each["id"]: each["fired"] for each in asked(cluster, "GET")[1]}

    added = run(
        *("fault", "add", "fail-api", "--api", "Produce", "--error", "NOT_ENOUGH_REPLICAS"),
        *("--times", "2", "--client-id", "shop", "--leader-of", "orders"),
    )
    assert "Produce gets NOT_ENOUGH_REPLICAS, 2 times, for clients shop*" in added.stdout
    send(cluster, "coffee")
    assert fired() == {1: 2}
    leader = asked(cluster, "GET")[1][0]["brokers"][0]

    status, apart = asked(cluster, "POST", fault={"kind": "cut-off", "broker": leader})
    assert (status, apart["brokers"]) == (201, [1, 2, 3])
    wait_until(lambda: fired()[2] > 0, what="a fetch that is cut off")
    assert asked(cluster, "POST", fault={"kind": "cut-off", "broker": 1})[0] == 400
    assert asked(cluster, "DELETE", "/faults/2") == (200, {})
    status, slow = asked(cluster, "POST", fault={"kind": "slow-disk", "delay_ms": 1})
    send(cluster, "tea")
    assert fired()[slow["id"]] > 0
    assert asked(cluster, "POST", fault={"kind": "fill-disk", "broker": leader})[0] == 201
    send(cluster, "bread")
    assert asked(cluster, "POST", fault={"kind": "kill", "controller": True})[0] in (
        201,
        400,
    )  # it may have been the one
    assert run("fault", "clear").returncode == 0
    assert fired() == {}
    assert all(broker["pid"] for broker in cluster.ask(do="status"))
    send(cluster, "ink")

    for fault, reason in (
        ({"kind": "fail-api", "api": "Prodcue", "drop": True}, "did you mean Produce?"),
        ({"kind": "fail-api", "api": "Produce"}, "this fault does nothing"),
        ({"kind": "kill", "broker": 7}, "there is no broker 7"),
        ({"kind": "kill", "leader_of": "order"}, "there is no partition 0 of a topic 'order'"),
    ):
        status, answer = asked(cluster, "POST", fault=fault)
        assert status == 400 and reason in answer["error"]
    assert asked(cluster, "GET", token="a guess")[0] == 401


def test_cluster_that_was_not_started_for_faults_takes_none(run: Run) -> None:
    assert up("--brokers", "1").returncode == 0
    [cluster] = running_clusters()
    assert cluster.faults is None
    done = run("fault", "add", "kill", "--broker", "1")
    assert done.returncode == 1 and "start it with `barnabas up --faults`" in done.stderr
