"""Settings of groups by request: kept in ZooKeeper, known on every broker, checked as Kafka 4.3 checks them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.broker.compose import Broker
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.znodes import decode_config
from barnabas.wire.messages.alter_configs import (
    AlterableConfig as FullConfig,
)
from barnabas.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from barnabas.wire.messages.alter_configs import (
    AlterConfigsResource as FullResource,
)
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, session, zookeeper

GROUP = ConfigResourceType.GROUP
#: A name that needs an encoding in ZooKeeper.
ODD = "orders/eu west*"


async def alter(
    broker: Broker, group: str, settings: Mapping[str, str | None], *, validate_only: bool = False
) -> tuple[int, str | None]:
    entries = [
        AlterableConfig(
            name=name, value=value, config_operation=AlterOperation.DELETE if value is None else AlterOperation.SET
        )
        for name, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    [answer] = (await ask(broker, request, IncrementalAlterConfigsResponse, version=1)).responses
    return answer.error_code, answer.error_message


async def describe(broker: Broker, group: str) -> tuple[int, dict[str, tuple[str | None, int]]]:
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=GROUP, resource_name=group)])
    [result] = (await ask(broker, request, DescribeConfigsResponse, version=4)).results
    return result.error_code, {each.name: (each.value, each.config_source) for each in result.configs}


async def listed(broker: Broker, kinds: list[int], *, version: int = 1) -> tuple[int, set[tuple[int, str]]]:
    request = ListConfigResourcesRequest(resource_types=kinds)
    answer = await ask(broker, request, ListConfigResourcesResponse, version=version)
    return answer.error_code, {(each.resource_type, each.resource_name) for each in answer.config_resources}


async def test_change_is_kept_in_zookeeper_and_reaches_the_other_broker(tmp_path: Path) -> None:
    async with (
        zookeeper() as ensemble,
        live_broker(ensemble, tmp_path / "1") as one,
        live_broker(ensemble, tmp_path / "2", {"broker.id": "2"}) as two,
        session(ensemble) as other,
    ):
        assert await alter(one, ODD, {"consumer.session.timeout.ms": "50000"}) == (ErrorCode.NONE, None)
        assert one.dynamic.group_config(ODD).consumer_session_timeout_ms == 50_000
        path = f"/config/groups/{paths.sanitize(ODD)}"
        data, _ = await other.get(path)
        assert decode_config(path, data) == {"consumer.session.timeout.ms": "50000"}
        await eventually(lambda: two.dynamic.group_config(ODD).consumer_session_timeout_ms == 50_000)
        _, found = await describe(two, ODD)
        assert found["consumer.session.timeout.ms"] == ("50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
        assert found["consumer.heartbeat.interval.ms"] == ("5000", ConfigSource.DEFAULT_CONFIG)
        assert await listed(one, [GROUP]) == (ErrorCode.NONE, {(GROUP, ODD)})
        # The last setting goes, and the znode with it.
        assert await alter(one, ODD, {"consumer.session.timeout.ms": None}) == (ErrorCode.NONE, None)
        assert not await other.exists(path)
        assert await listed(one, [GROUP]) == (ErrorCode.NONE, set())


async def test_broker_that_starts_knows_the_settings_of_groups(ensemble: Ensemble, tmp_path: Path) -> None:
    async with live_broker(ensemble, tmp_path) as broker:
        await alter(broker, "g", {"share.delivery.count.limit": "7"})
    async with live_broker(ensemble, tmp_path) as broker:
        assert broker.dynamic.group_config("g").share_delivery_count_limit == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"consumer.session.timeout.ms": "1000"},
            "must be greater than or equal to group.consumer.min.session.timeout",
        ),
        ({"retention.ms": "1000"}, "Unknown group config name: retention.ms"),
        ({"share.isolation.level": "serializable"}, "String must be one of: read_committed, read_uncommitted"),
    ],
)
async def test_wrong_setting_changes_nothing(broker: Broker, settings: dict[str, str], message: str) -> None:
    for validate_only in (True, False):
        code, why = await alter(broker, "g", settings, validate_only=validate_only)
        assert code == ErrorCode.INVALID_CONFIG
        assert message in (why or "")
    assert await listed(broker, [GROUP]) == (ErrorCode.NONE, set())
    # A check alone writes nothing, either.
    assert await alter(broker, "g", {"share.delivery.count.limit": "7"}, validate_only=True) == (0, None)
    assert await listed(broker, [GROUP]) == (ErrorCode.NONE, set())


async def test_alter_configs_replaces_all_settings_of_the_group(broker: Broker) -> None:
    await alter(broker, "g", {"share.delivery.count.limit": "7"})
    resource = FullResource(
        resource_type=GROUP,
        resource_name="g",
        configs=[FullConfig(name="share.isolation.level", value="read_committed")],
    )
    answer = await ask(broker, AlterConfigsRequest(resources=[resource]), AlterConfigsResponse, version=2)
    assert [each.error_code for each in answer.responses] == [ErrorCode.NONE]
    config = broker.dynamic.group_config("g")
    assert (config.share_delivery_count_limit, config.share_isolation_level) == (5, "read_committed")


async def test_group_without_a_name_has_no_settings(broker: Broker) -> None:
    assert (await alter(broker, "", {"share.delivery.count.limit": "7"}))[0] == ErrorCode.INVALID_REQUEST
    assert (await describe(broker, ""))[0] == ErrorCode.INVALID_REQUEST
    assert (await alter(broker, "..", {"share.delivery.count.limit": "7"}))[0] == ErrorCode.INVALID_REQUEST


async def test_list_of_resources_has_the_types_that_were_asked_for(broker: Broker) -> None:
    await alter(broker, "g", {"share.delivery.count.limit": "7"})
    broker_types = {(ConfigResourceType.BROKER, "1"), (ConfigResourceType.BROKER_LOGGER, "1")}
    assert await listed(broker, []) == (ErrorCode.NONE, {(GROUP, "g")} | broker_types)
    assert await listed(broker, [ConfigResourceType.BROKER]) == (0, {(ConfigResourceType.BROKER, "1")})
    assert await listed(broker, [3]) == (ErrorCode.UNSUPPORTED_VERSION, set())
    # Version 0 knows client metrics alone, which are not collected.
    assert await listed(broker, [], version=0) == (ErrorCode.NONE, set())
