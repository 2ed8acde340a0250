"""Each feature can be left out: without its line in the list, a broker starts, serves, and does not announce its APIs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.broker import features
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.parts.feature import Plugin
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.record_build import BatchBuilder
from barnabas.wire.versions import api_named
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

FOLDER = Path(features.__file__).parent
#: Settings that turn on all features that need a setting and no other server.
SETTINGS = {"barnabas.inside.enable": "true", "barnabas.metrics.port": "0", "remote.log.storage.system.enable": "true"}
LINK_APIS = {api_named(name).key for name in ("CreateLink", "DescribeLinks", "AlterLink", "DeleteLink")}


def test_list_has_every_folder() -> None:
    assert set(features.FEATURES) == {path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()}


@pytest.mark.parametrize("name", features.FEATURES)
def test_feature_declares_itself(name: str) -> None:
    assert callable(importlib.import_module(f"barnabas.broker.features.{name}.feature").build)


def test_feature_that_is_off_is_not_imported() -> None:
    """Object stores and spans cost every start milliseconds."""
    script = (
        "import sys; from barnabas.base.config.broker import BrokerConfig; from barnabas.broker import features;"
        "list(features.wanted(BrokerConfig.parse({'zookeeper.connect': 'zk:2181'})));"
        "print(*sorted(name for name in sys.modules if name.startswith('barnabas.broker.features.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.split(".")[3] for name in done.stdout.split()}
    assert loaded == {"schema_checks", "link", "client_metrics", "neighbours"}


@pytest.mark.parametrize("name", features.FEATURES)
async def test_broker_without_the_feature_serves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {each: is_wanted for each, is_wanted in features.FEATURES.items() if each != name}
    monkeypatch.setattr(features, "FEATURES", others)
    settings = {
        **SETTINGS,
        "barnabas.audit.log": str(tmp_path / "audit"),
        "barnabas.remote.storage.url": f"file://{tmp_path}/tier",
    }
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path / "log", settings) as broker:
        offered = await ask(broker, ApiVersionsRequest(), ApiVersionsResponse, version=2)
        assert ({each.api_key for each in offered.api_keys} >= LINK_APIS) is (name != "link")
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = await ask(broker, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, version=5)
        assert created.topics[0].error_code == ErrorCode.NONE
        builder = BatchBuilder()
        builder.append(None, b"value", timestamp=1)
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=builder.build())])
        produce = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        answer = await ask(broker, produce, ProduceResponse, version=9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        latest = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        listed = await ask(broker, ListOffsetsRequest(topics=[latest]), ListOffsetsResponse, version=5)
        assert listed.topics[0].partitions[0].offset == 1


def test_plugins_have_no_misspelt_hooks() -> None:
    """A misspelt hook would never be called."""
    for name in features.FEATURES:
        importlib.import_module(f"barnabas.broker.features.{name}.feature")
    hooks = {name for name in vars(Plugin) if not name.startswith("_")}
    for kind in Plugin.__subclasses__():
        meant = {name for name in vars(kind) if name in ("start", "stop", "close") or name.endswith("_changed")}
        assert {name for name in meant if not name.startswith("_")} <= hooks, kind


def test_produce_has_the_hooks_that_features_set() -> None:
    assert {"checks", "append"} <= set(ProduceApi(None, None).__dict__)  # type: ignore[arg-type]
