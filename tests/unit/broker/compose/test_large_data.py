"""Data that a client sends and that ZooKeeper would not take: refused with its size, and without a lost connection."""

from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.wire.messages import alter_user_scram_credentials as scram
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

AUTHORIZER = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}


@pytest.mark.parametrize("validate_only", [False, True])
async def test_settings_are_refused_with_their_size(tmp_path: Path, validate_only: bool) -> None:
    """No single string of the protocol is so long, but a plug-in may have any number of settings."""
    entries = [
        AlterableConfig(name=f"plugin.setting.{number}", config_operation=AlterOperation.SET, value="x" * 30_000)
        for number in range(40)
    ]
    resource = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name="1", configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)

    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        [answer] = (await ask(broker, request, IncrementalAlterConfigsResponse, version=1)).responses
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "/config/brokers/1 would have 1,200," in (answer.error_message or "")
        assert broker.session.disconnects.value == 0
        assert broker.dynamic.own == {}


async def test_credentials_are_refused_with_their_size(tmp_path: Path) -> None:
    request = scram.AlterUserScramCredentialsRequest(
        upsertions=[
            scram.ScramCredentialUpsertion(
                name=name, mechanism=1, iterations=4096, salt=b"s" * salt_bytes, salted_password=b"p" * 32
            )
            for name, salt_bytes in (("alice", 900_000), ("bob", 16))
        ]
    )

    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        alice, bob = (await ask(broker, request, scram.AlterUserScramCredentialsResponse, version=0)).results
        assert alice.error_code == ErrorCode.INVALID_REQUEST
        assert "/config/users/alice would have 1,2" in (alice.error_message or "")
        assert bob.error_code == ErrorCode.NONE
        assert broker.session.disconnects.value == 0


async def test_the_entries_of_one_resource_are_refused_with_their_size(tmp_path: Path) -> None:
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=2,
                resource_name=topic,
                resource_pattern_type=3,
                principal=f"User:{number}{'x' * 25_000}",
                host="*",
                operation=3,
                permission_type=3,
            )
            for topic, count in (("full", 50), ("other", 1))
            for number in range(count)
        ]
    )

    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, AUTHORIZER) as broker:
        results = (await ask(broker, request, CreateAclsResponse, version=3)).results
        assert [each.error_code for each in results] == [ErrorCode.INVALID_REQUEST] * 50 + [ErrorCode.NONE]
        assert "/kafka-acl/Topic/full would have 1,25" in (results[0].error_message or "")
        assert broker.session.disconnects.value == 0
