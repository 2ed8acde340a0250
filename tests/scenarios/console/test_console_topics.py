"""Topics: the list, and what changes them, seen by another client."""

from collections.abc import Callable
from uuid import uuid4

from confluent_kafka.admin import AdminClient, ConfigResource

from barnabas.testing import Cluster
from tests.scenarios.console.conftest import DEADLINE_S, Console, eventually
from tests.scenarios.console.test_console_messages import produce


def test_list_is_searched_sorted_and_cut_by_the_server(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    prefix = f"list{uuid4().hex}"
    for number, (partitions, records) in enumerate([(1, 5), (3, 50), (2, 0)]):
        cluster.create_topic(f"{prefix}.{number}", partitions=partitions)
        produce(cluster, f"{prefix}.{number}", [{"value": "v" * 100}] * records)

    def names(**query: object) -> list[str]:
        return [t["name"][-1] for t in console.get("/api/topics", search=prefix.upper(), **query)["topics"]]

    eventually(names, lambda found: found == ["0", "1", "2"])
    assert names(descending=1) == ["2", "1", "0"]
    assert names(sort="partitions") == ["0", "2", "1"]
    eventually(lambda: names(sort="messages", descending=1), lambda found: found == ["1", "0", "2"])
    eventually(lambda: names(sort="size", descending=1), lambda found: found == ["1", "0", "2"])
    window = eventually(
        lambda: console.get("/api/topics", search=prefix, start=1, count=1),
        lambda answer: answer["topics"][0]["messages"] == 50 and answer["topics"][0]["size"],
    )
    assert window["total"] == 3 and [t["name"] for t in window["topics"]] == [f"{prefix}.1"]
    row = window["topics"][0]
    assert (row["messages"], row["partitions"], row["underReplicated"], row["offline"]) == (50, 3, 0, 0)
    assert row["size"] > 0


def test_internal_topics_are_shown_on_demand(console: Console, cluster: Cluster, topic: Callable[..., str]) -> None:
    cluster.create_topic("__hidden")
    assert console.get("/api/topics", search="__hidden")["total"] == 0
    eventually(lambda: console.get("/api/topics", search="__hidden", internal=1), lambda answer: answer["total"] == 1)


def test_topic_created_here_is_there_for_others(console: Console, reading_console: Console, cluster: Cluster) -> None:
    name = f"made-{uuid4()}"
    body = {"name": name, "partitions": 2, "replicas": 1, "settings": {"retention.ms": "60000"}}
    assert reading_console.change("POST", "/api/topics", body)[:2] == (403, "READ_ONLY")
    assert console.change("POST", "/api/topics", body | {"validateOnly": True}) == {"created": name}
    assert console.get(f"/api/topics/{name}")[:2] == (404, "NOT_FOUND")
    assert console.change("POST", "/api/topics", body) == {"created": name}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert len(admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions) == 2
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert found["retention.ms"].value == "60000"
    assert console.change("POST", "/api/topics", body)[:2] == (409, "TOPIC_ALREADY_EXISTS")
    assert console.change("POST", "/api/topics", {"name": "a b"})[:2] == (400, "INVALID_TOPIC_EXCEPTION")
    assert console.change("POST", "/api/topics", {})[:2] == (400, "BAD_REQUEST")
    wrong = body | {"name": f"x-{name}", "settings": {"retention.ms": "soon"}}
    assert console.change("POST", "/api/topics", wrong)[:2] == (400, "INVALID_CONFIG")


def test_settings_say_where_they_come_from_and_can_be_taken_back(console: Console, topic: Callable[..., str]) -> None:
    name = topic()
    path = f"/api/topics/{name}/settings"

    def setting(wanted: str) -> dict[str, object]:
        return next(each for each in console.get(path)["settings"] if each["name"] == wanted)

    usual = setting("retention.ms")
    assert (usual["value"], usual["origin"], usual["default"]) == ("604800000", "default", "604800000")
    assert console.change("PATCH", path, {"settings": {"retention.ms": "1000"}}) == {"changed": ["retention.ms"]}
    own = eventually(lambda: setting("retention.ms"), lambda found: found["value"] == "1000")
    assert (own["value"], own["origin"], own["default"], own["isDefault"]) == ("1000", "topic", "604800000", False)
    console.change("PATCH", path, {"settings": {"retention.ms": None}})
    eventually(lambda: setting("retention.ms"), lambda found: found == usual)
    assert console.change("PATCH", path, {"settings": {"no.such": "1"}})[1] == "INVALID_CONFIG"


def test_partitions_are_added_records_and_topics_deleted(
    console: Console, cluster: Cluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(cluster, name, [{"value": "v"}] * 10)
    assert console.change("POST", f"/api/topics/{name}/partitions", {"partitions": 3}) == {"partitions": 3}
    assert console.get(f"/api/topics/{name}")["partitions"] == 3
    assert console.change("POST", f"/api/topics/{name}/partitions", {"partitions": 2})[1] == "INVALID_PARTITIONS"
    path = f"/api/topics/{name}/delete-records"
    some = console.change("POST", path, {"partitions": [{"partition": 0, "offset": 4}]})
    assert some == {"partitions": [{"partition": 0, "start": 4}]}
    detail = console.get(f"/api/topics/{name}")
    assert detail["messages"] == 6 and detail["partitionList"][0]["start"] == 4
    everything = console.change("POST", path, {"partitions": [{"partition": 0, "offset": None}]})
    assert everything == {"partitions": [{"partition": 0, "start": 10}]}
    assert console.change("POST", path, {"partitions": [{"partition": 0, "offset": 99}]})[1] == "OFFSET_OUT_OF_RANGE"
    assert console.change("DELETE", f"/api/topics/{name}") == {"deleted": name}
    assert console.change("DELETE", f"/api/topics/{name}")[:2] == (404, "UNKNOWN_TOPIC_OR_PARTITION")
