"""Files of connectors: their forms, secrets, the worker's file, and what is refused before anything starts."""

import json
from pathlib import Path

import pytest

from barnabas.spark.connect import files
from barnabas.spark.connect.classes import CLASSES
from barnabas.spark.connect.command import Wanted, read
from barnabas.spark.connect.connector import Worker, validated
from barnabas.spark.connect.converters.json_converter import JsonConverter
from barnabas.spark.connect.converters.simple import StringConverter
from barnabas.spark.connect.options import ConnectorRefused

SINK = {
    "name": "orders",
    "connector.class": "JdbcSink",
    "topics": "orders",
    "connection.url": "jdbc:postgresql://localhost/shop",
    "insert.mode": "insert",
}


def problems_of(**changes: str | None) -> list[str]:
    """Return what is wrong with a sink's config; `_` in names stands for a dot."""
    config = SINK | {name.replace("_", "."): value for name, value in changes.items()}
    _, problems = validated({name: value for name, value in config.items() if value is not None}, CLASSES, Worker())
    return [str(each) for each in problems]


@pytest.mark.parametrize(
    "document",
    [
        {"name": "orders", "config": {name: value for name, value in SINK.items() if name != "name"}},
        SINK,
        {"name": "orders", "config": SINK, "initial_state": "PAUSED"},
    ],
)
def test_both_forms_of_a_file_are_read(tmp_path: Path, document: dict[str, object]) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(document))
    found = files.read_connector(file)
    assert (found.name, found.config) == ("orders", SINK)
    assert found.initial_state == ("PAUSED" if "initial_state" in document else "RUNNING")


def test_properties_are_read_and_numbers_are_texts(tmp_path: Path) -> None:
    file = tmp_path / "orders.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in SINK.items()))
    assert files.read_connector(file).config == SINK
    assert files.described({"tasks.max": 2, "auto.create": True}, tmp_path / "a.json").config == {
        "name": "a",
        "tasks.max": "2",
        "auto.create": "true",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{oops", "JSON"),
        ("[]", "or its config alone"),
        ('{"name": "a", "config": {"name": "b"}}', "the name is a, and that of its config b"),
        ('{"name": "a", "config": {}, "initial_state": "GONE"}', "use RUNNING, PAUSED, STOPPED"),
        ('{"name": "a/b", "config": {}}', "is not a name for a connector"),
        ('{"name": "a", "config": {"x": {}}}', "not an object or a list"),
        ('{"name": "a", "confg": 1, "config": {}}', "unknown member confg"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ConnectorRefused, match=message):
        files.read_connector(file)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(SINK))
    with pytest.raises(ConnectorRefused, match="both describe a connector orders"):
        read(Wanted([tmp_path], "localhost:9092", {}))


def test_secrets_come_from_the_environment_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.properties").write_text("password=s3cret\n")
    (tmp_path / "token").write_text("abc")
    monkeypatch.setenv("SHOP_USER", "me")
    given = {
        "a": "${env:SHOP_USER}",
        "b": f"x${{file:{tmp_path}/secret.properties:password}}",
        "c": f"${{dir:{tmp_path}:token}}",
    }
    assert files.resolved(given) == {"a": "me", "b": "xs3cret", "c": "abc"}
    with pytest.raises(ConnectorRefused, match="password: the environment has no NOWHERE"):
        files.resolved({"password": "${env:NOWHERE}"})


def test_the_worker_gives_converters_and_client_settings(tmp_path: Path) -> None:
    file = tmp_path / "connect-distributed.properties"
    file.write_text(
        "bootstrap.servers=a:9092\ngroup.id=x\nkey.converter=org.apache.kafka.connect.storage.StringConverter\n"
        "value.converter=org.apache.kafka.connect.json.JsonConverter\nvalue.converter.schemas.enable=false\n"
        "security.protocol=SSL\n"
    )
    worker, without_effect = files.read_worker(file)
    assert (worker.bootstrap, worker.client, without_effect) == ("a:9092", {"security.protocol": "SSL"}, ["group.id"])
    connector, _ = validated(SINK, CLASSES, worker)
    assert connector is not None
    assert (connector.key_converter, connector.value_converter) == (
        StringConverter(),
        JsonConverter(with_schemas=False),
    )
    own, _ = validated(SINK | {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}, CLASSES, worker)
    assert own is not None and own.value_converter == JsonConverter()


def test_a_class_has_its_whole_its_short_and_its_shortest_name() -> None:
    for name in (
        "io.confluent.connect.jdbc.JdbcSinkConnector",
        "io.aiven.connect.jdbc.JdbcSinkConnector",
        "JdbcSinkConnector",
        "JdbcSink",
    ):
        assert problems_of(connector_class=name) == []
    assert "'JdbcSnkConnector' does not run here; did you mean" in problems_of(connector_class="JdbcSnkConnector")[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_craete": "true"}, "auto.craete: is not an option of this connector; did you mean auto.create?"),
        ({"auto_create": "yes"}, "auto.create: 'yes' is not valid: use true or false"),
        ({"topics": None}, "topics: a sink reads either topics or topics.regex"),
        ({"connection_url": "jdbc:oracle://x/y"}, "connection.url: only jdbc:postgresql://"),
        ({"insert_mode": "update"}, "insert.mode: 'update' is not valid: use insert or upsert"),
        ({"insert_mode": "upsert"}, "pk.mode: insert.mode=upsert needs a primary key"),
        ({"delete_enabled": "true"}, "delete.enabled: needs pk.mode=record_key"),
        ({"db_timezone": "Asia/Seoul"}, "db.timezone: 'Asia/Seoul' is not supported here: times without a zone"),
        ({"errors_deadletterqueue_topic_name": "orders"}, "the connector reads orders itself"),
        ({"transforms": "t"}, "transforms.t.type: no transform ''"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(changes: dict[str, str | None], message: str) -> None:
    found = problems_of(**changes)
    assert any(message in each for each in found), found


def test_a_mirror_is_refused_with_the_link_that_does_its_work() -> None:
    config = {
        "name": "mirror",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "old",
        "source.cluster.bootstrap.servers": "old:9092",
        "source.cluster.sasl.jaas.config": "secret",
        "topics": "orders.*, people",
    }
    _, [problem] = validated(config, CLASSES, Worker())
    assert "barnabas link create old --config source.properties --topics 'orders.*|people'" in problem.message
    assert "bootstrap.servers=old:9092" in problem.message and "secret" not in problem.message


def test_all_problems_of_a_file_are_named_at_once() -> None:
    assert len(problems_of(auto_create="yes", tasks_max="many", value_converter="x.Y")) == 3
