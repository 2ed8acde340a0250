"""The console on Apache Kafka, 3.9.1 with ZooKeeper and 4.3.0 with KRaft: all that needs no inside works."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from bench.kafka import ApacheKafka

from barnabas.testing import wait_until
from tests.interop import maven
from tests.interop.console import stage
from tests.interop.console.consoles import console
from tests.interop.kraft import kraft

DEADLINE_S = 60.0


@pytest.fixture(scope="module", params=["3.9.1", "4.3.0"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if not maven.is_available():
        pytest.skip("needs mvn and java")
    if request.param == "3.9.1":
        with ApacheKafka(brokers=1, heap="512m") as kafka:
            yield kafka.bootstrap
    else:
        with kraft() as address:
            yield address


@pytest.fixture(scope="module")
def loaded(bootstrap: str) -> Iterator[str]:
    stage.make_topics(bootstrap, replicas=1)
    stage.write_formats(bootstrap, None)
    stage.write_hostile(bootstrap)
    with stage.load(bootstrap, rate=100):
        yield bootstrap


@pytest.fixture(scope="module")
def address(loaded: str) -> Iterator[str]:
    with console("--bootstrap-server", loaded, "--read-write") as url:
        yield url


@pytest.fixture(scope="module")
def api(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=DEADLINE_S, trust_env=False) as http:
        http.headers["x-csrf-token"] = http.get("/api/session").json()["csrfToken"]
        yield http


def get(api: httpx.Client, path: str) -> Any:
    response = api.get(path)
    assert response.status_code == 200, f"{path}: {response.text}"
    return response.json()


def test_topics_have_their_figures(api: httpx.Client) -> None:
    rows = {row["name"]: row for row in get(api, "/api/topics")["topics"]}
    assert rows.keys() >= {stage.ORDERS, stage.FORMATS, stage.EMPTY, stage.HOSTILE}
    assert (rows[stage.ORDERS]["partitions"], rows[stage.EMPTY]["messages"]) == (6, 0)
    assert wait_until(lambda: get(api, f"/api/topics/{stage.ORDERS}")["rate"]) > 0
    assert get(api, f"/api/topics/{stage.FORMATS}")["size"] > 0


def test_messages_are_read_and_searched(api: httpx.Client) -> None:
    keys = [
        record["key"]["text"] for record in get(api, f"/api/topics/{stage.FORMATS}/messages?from=oldest")["records"]
    ]
    assert keys[:3] == ["text", "json", "number"]
    assert get(api, f"/api/topics/{stage.EMPTY}/messages")["records"] == []
    search = api.get(f"/api/topics/{stage.FORMATS}/search", params={"from": "oldest", "filter": "value.amount > 100"})
    assert '"in JSON"' in search.text.replace("\\\\", "").replace("\\", "") and "event: end" in search.text


def test_the_internal_topics_records_are_decoded(api: httpx.Client) -> None:
    found = get(api, "/api/topics/__consumer_offsets/messages?from=newest&count=50")["records"]
    assert any(stage.BILLING in record["key"]["text"] for record in found)


def test_a_record_is_produced(api: httpx.Client) -> None:
    body = {"key": {"text": "by the console"}, "value": {"text": "v"}, "partition": 0}
    done = api.post(f"/api/topics/{stage.HOSTILE}/messages", json=body)
    assert done.status_code == 200, done.text
    offset = done.json()["offset"]
    assert get(api, f"/api/topics/{stage.HOSTILE}/messages/0/{offset}")["key"]["text"] == "by the console"


def test_groups_have_members_and_lag(api: httpx.Client) -> None:
    def billing() -> Any:
        found = get(api, f"/api/groups/{stage.BILLING}")
        return found if found["members"] and found["partitions"] else None

    found = wait_until(billing)
    assert {row["topic"] for row in found["partitions"]} == {stage.ORDERS}
    rows = {row["group"]: row for row in get(api, "/api/groups?count=500")["groups"]}
    assert rows.keys() >= {stage.BILLING, stage.STUCK}
    assert wait_until(lambda: get(api, f"/api/groups/{stage.STUCK}")["lag"]) > 0


def test_every_page_of_the_menu_opens(open_tab: Callable[..., Any], address: str) -> None:
    """Pages of the inside say what they need, instead of failing."""
    with open_tab(address) as tab:
        tab.expected = ["501", "404", "/api/acls"]  # there is no authorizer
        tab.go("/")
        tab.page.locator("#navigation a").first.wait_for()
        for link in [link.get_attribute("href") for link in tab.page.locator("#navigation a").all()]:
            tab.page.locator(f'#navigation a[href="{link}"]').click()
            tab.page.locator(f'#navigation a[href="{link}"][aria-current="page"]').wait_for()
            tab.page.locator("main h1").first.wait_for()
        tab.screenshot("apache")
