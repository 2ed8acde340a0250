"""IncrementalAlterConfigs of brokers: a change goes to what ZooKeeper has, not to what this broker has heard of."""

from pathlib import Path

import pytest
from live_broker import ask, live_broker
from tests.unit.coordination.zookeeper_fixture import run, session, zookeeper

from barnabas.coordination import paths
from barnabas.coordination.config_store import ConfigStore
from barnabas.coordination.znodes import encode_config
from barnabas.core.clock import SystemClock
from barnabas.core.errors import ErrorCode
from barnabas.core.words import AlterOperation, ConfigResourceType
from barnabas.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def change(broker: str, name: str, value: str) -> IncrementalAlterConfigsRequest:
    entry = AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value)
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name=broker, configs=[entry])]
    )


@pytest.mark.parametrize("broker_name", ["", "1"], ids=["the cluster's default", "one broker"])
def test_a_change_keeps_what_another_broker_has_just_written(tmp_path: Path, broker_name: str) -> None:
    """The notification of the other change is still on its way here."""
    entity = broker_name or paths.DEFAULT_ENTITY

    async def scenario() -> None:
        async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker, session(ensemble) as other:
            written = {"log.cleaner.threads": "2"}
            path = paths.config_entity(paths.BROKERS_ENTITY, entity)
            await other.create(path, encode_config(written), make_path=True)
            response = await ask(
                broker,
                change(broker_name, "log.retention.ms", "1000000"),
                IncrementalAlterConfigsResponse,
                version=1,
            )
            assert [each.error_code for each in response.responses] == [ErrorCode.NONE]
            stored = await ConfigStore(other, SystemClock()).read(paths.BROKERS_ENTITY, entity)
            assert stored == {**written, "log.retention.ms": "1000000"}

    run(scenario())
