"""meta.properties: Kafka's bytes, and directories that belong to another broker."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.chance import random_uuid
from barnabas.base.errors import Malformed
from barnabas.broker.storage import meta_properties
from barnabas.broker.storage.checkpoints import CheckpointError
from barnabas.broker.storage.meta_properties import InconsistentMetaProperties, MetaProperties

GOLDEN = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0" / "meta.properties"
WRITTEN_MS = int(datetime(2026, 11, 15, 7, 49, 20, tzinfo=UTC).timestamp() * 1000)


def test_kafkas_file_is_read_and_written_again(tmp_path):
    meta = meta_properties.read(str(GOLDEN))
    assert meta == MetaProperties(0, "W0vlOuTWSMqfJRGHnv4WcQ")
    copy = tmp_path / "meta.properties"
    meta_properties.write(str(copy), meta, now_ms=WRITTEN_MS)
    assert copy.read_bytes() == GOLDEN.read_bytes()


def test_new_directory_has_no_file(tmp_path):
    assert meta_properties.read(str(tmp_path / "meta.properties")) is None


@given(
    version=st.sampled_from([0, 1]),
    cluster=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    broker_id=st.integers(0, 2**31 - 1),
    with_directory=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_round_trip(tmp_path_factory, version, cluster, broker_id, with_directory):
    path = str(tmp_path_factory.mktemp("meta") / "meta.properties")
    meta = MetaProperties(broker_id, cluster, random_uuid() if with_directory else None, version)
    meta_properties.write(path, meta, now_ms=0)
    assert meta_properties.read(path) == meta


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version=2\n", "version 2 is not known"),
        (b"version=x\n", "version: 'x' is not a number"),
        (b"broker.id=one\n", "broker.id: 'one' is not a number"),
        (b"version=1\nnode.id=1\n", "cluster.id are expected"),
        (b"directory.id=nonsense\n", "directory.id cannot be read"),
        (b"cluster.id=\\u12\n", "four hexadecimal digits"),
    ],
)
def test_error_of_a_malformed_file_names_its_path(tmp_path, content: bytes, why: str):
    path = tmp_path / "meta.properties"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=why) as caught:
        meta_properties.read(str(path))
    assert str(path) in str(caught.value)


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_garbage_raises_nothing_but_the_typed_error(tmp_path_factory, data: bytes):
    path = tmp_path_factory.mktemp("meta") / "meta.properties"
    path.write_bytes(data)
    try:
        meta_properties.read(str(path))
    except Malformed:
        return


def test_new_directories_take_the_brokers_id_and_the_known_cluster():
    found = {"/a": MetaProperties(7, "C"), "/b": None}
    assert meta_properties.check(found, broker_id=7, cluster_id=None) == {
        "/a": MetaProperties(7, "C"),
        "/b": MetaProperties(7, "C"),
    }
    assert meta_properties.check({"/b": None}, broker_id=7, cluster_id="D") == {"/b": MetaProperties(7, "D")}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"/a": MetaProperties(8, "C")}, "/a belongs to broker 8, this is broker 7"),
        ({"/a": MetaProperties(7, "X")}, "/a belongs to cluster X, this broker joins C"),
        ({"/a": MetaProperties(7, "C"), "/b": MetaProperties(7, "X")}, "different clusters"),
    ],
)
def test_directory_of_another_broker_or_cluster_is_refused(found, why: str):
    with pytest.raises(InconsistentMetaProperties, match=why):
        meta_properties.check(found, broker_id=7, cluster_id="C")
