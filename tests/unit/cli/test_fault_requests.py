"""What a request for a fault must be, and what the HTTP endpoint for faults refuses."""

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.cli.faults import endpoint
from barnabas.cli.faults.book import KINDS, FaultBook
from barnabas.cli.faults.endpoint import FaultEndpoint
from barnabas.cli.local_cluster import ClusterFailed
from barnabas.testing import Cluster


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (None, 'a fault is an object with "kind"'),
        ({}, "there is no kind of fault None; there are fail-api, "),
        ({"kind": ["kill"]}, "there is no kind of fault"),
        ({"kind": "kil"}, "did you mean kill?"),
        ({"kind": "kill", "delay_ms": 3}, "kill does not take 'delay_ms'; it takes broker, controller, leader_of"),
        ({"kind": "kill", "broker": "1"}, "broker='1' is not a whole number"),
        ({"kind": "kill", "broker": True}, "broker=True is not a whole number"),
        ({"kind": "cut-off", "broker": 1, "others": ["2"]}, "is not a list of brokers"),
        ({"kind": "slow-disk"}, "slow-disk needs delay_ms"),
        ({"kind": "kill"}, "kill needs a broker"),
        ({"kind": "kill", "controller": False}, "kill needs a broker"),
        ({"kind": "kill", "broker": 1, "controller": True}, "only one of broker, controller can say where"),
        ({"kind": "kill", "leader_of": "orders:x"}, "leader_of takes TOPIC or TOPIC:PARTITION"),
        ({"kind": "kill", "broker": 7}, "there is no broker 7"),
        ({"kind": "pause-zookeeper", "broker": 1}, "pause-zookeeper does not take 'broker'; it takes nothing"),
    ],
)
def test_request_that_cannot_be_is_refused_with_the_reason(request_: object, reason: str) -> None:
    with pytest.raises(ValueError, match=r".*") as refused:
        FaultBook(Cluster(brokers=2)).add(request_)
    assert reason in str(refused.value)


def test_every_kind_is_on_the_page_and_in_the_help() -> None:
    from pathlib import Path

    from barnabas.cli.fault import TOOL

    page = (Path(__file__).parents[3] / "docs" / "faults.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in page or kind not in TOOL.about] == []


@pytest.fixture
def served() -> Iterator[FaultEndpoint]:
    def ask(**command: Any) -> Any:
        if command.get("fault") == "refused":
            raise ClusterFailed("no")
        return command

    with FaultEndpoint(ask, port=0, token="a long secret") as found:
        yield found


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/faults", {}, b"", 200),
        ("DELETE", "/faults/3", {}, b"", 200),
        ("POST", "/faults", {}, b"{}", 201),
        ("POST", "/faults", {}, b'"refused"', 400),
        ("POST", "/faults", {}, b"[" * 10_000, 400),
        ("POST", "/faults", {}, b"\xff", 400),
        ("POST", "/faults", {}, b" " * (endpoint.BODY_BYTES_MAX + 1), 413),
        ("POST", "/faults", {"Content-Length": "9" * 40}, b"", 413),
        ("POST", "/faults", {"Content-Length": "-1"}, b"", 411),
        ("POST", "/faults/3", {}, b"{}", 405),
        ("GET", "/faults/3", {}, b"", 405),
        ("DELETE", "/faults/x", {}, b"", 404),
        ("DELETE", "/faults/" + "1" * 30, {}, b"", 404),
        ("GET", "/", {}, b"", 404),
        ("GET", "/faults", {"Authorization": "Bearer a long secre"}, b"", 401),
        ("GET", "/faults", {"Authorization": "Bearer \xe9"}, b"", 401),
        ("GET", "/faults", {"Authorization": ""}, b"", 401),
        ("PUT", "/faults", {}, b"", 501),
    ],
)
def test_endpoint(
    served: FaultEndpoint, method: str, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    connection.request(method, path, body or None, {"Authorization": "Bearer a long secret", **headers})
    assert connection.getresponse().status == status
    connection.close()


def test_short_token_is_refused() -> None:
    with pytest.raises(ClusterFailed, match="BARNABAS_FAULTS_TOKEN is too short"):
        FaultEndpoint(lambda **command: None, port=0, token="short")
