"""A store on S3: moto's server, one for all tests of the module."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.store import PART_BYTES, FilePart, ObjectMissing, Store, StoreFault, open_store
from barnabas.broker.server.platform import Platform
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import live_broker
from tests.unit.broker.features.tiered.tier_broker import SETTINGS, TieredBroker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "aws_region": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def settings(endpoint: str) -> dict[str, str]:
    import boto3

    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    s3.create_bucket(Bucket="tier")
    s3.close()
    return {"aws_endpoint": endpoint, **CREDENTIALS}


@pytest.fixture
def store(settings: dict[str, str]) -> Store:
    return open_store("s3://tier/history", settings)


async def test_objects_go_up_come_back_in_ranges_and_go(store: Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256 + 10)
    (tmp_path / "segment").write_bytes(data)
    await store.put("a/0/large.log", FilePart(str(tmp_path / "segment"), len(data)))
    await store.put("a/0/large.indexes", b"small")
    assert (
        await store.get_range("a/0/large.log", PART_BYTES - 2, PART_BYTES + 2) == data[PART_BYTES - 2 : PART_BYTES + 2]
    )
    assert await store.get("a/0/large.indexes", bytes_max=100) == b"small"
    assert await store.list("a/0/") == [("a/0/large.indexes", 5), ("a/0/large.log", len(data))]
    with pytest.raises(StoreFault):
        await store.get_range("a/0/large.indexes", 3, 9)
    await store.delete(["a/0/large.log", "a/0/large.indexes", "a/0/none.log"])
    assert await store.list("a/0/") == []
    with pytest.raises(ObjectMissing):
        await store.get_range("a/0/large.log", 0, 1)


async def test_a_bucket_that_is_not_there_is_a_fault(settings: dict[str, str]) -> None:
    store = open_store("s3://nobody", settings)
    with pytest.raises(StoreFault):
        await store.put("a", b"1")


async def test_a_broker_copies_to_s3(settings: dict[str, str], tmp_path: Path) -> None:
    given = {
        **SETTINGS,
        "barnabas.remote.storage.url": "s3://tier/cluster-1",
        **{f"rsm.config.{name}": value for name, value in settings.items()},
    }
    platform = Platform()
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, given, platform=platform) as broker:
        tier = TieredBroker(broker, store=None)  # type: ignore[arg-type]
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(10)
        await eventually(tier.is_all_copied, what="every rolled segment is in the bucket")
        await eventually(lambda: len(tier.log.segments) == 1, what="local segments go")
        store = open_store("s3://tier/cluster-1", settings)
        prefix = layout.partition_prefix(tier.finished[0].id.of)
        keys = {key for each in tier.finished for key in layout.keys(each)}
        assert {key for key, _ in await store.list(prefix)} == keys
