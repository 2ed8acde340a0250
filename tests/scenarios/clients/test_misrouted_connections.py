"""Clients that say in ApiVersions which broker they mean to connect to (KIP-1242)."""

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import Broker
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse

NO_CLUSTER = None


@pytest.mark.parametrize(
    ("is_own_cluster", "node_id", "expected"),
    [
        (True, 1, ErrorCode.NONE),
        (True, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        (True, -1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (False, 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (NO_CLUSTER, -1, ErrorCode.NONE),
        (NO_CLUSTER, 1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_connection_to_another_broker_than_the_client_means_is_noticed(
    is_own_cluster: bool | None, node_id: int, expected: ErrorCode
) -> None:
    async with Broker() as kafka, AsyncClient(client_config(kafka.bootstrap)) as client:
        connection = await client.any_connection()
        own = (await connection.request(MetadataRequest(topics=[]), MetadataResponse)).cluster_id
        cluster_id = {True: own, False: "another", NO_CLUSTER: None}[is_own_cluster]
        request = ApiVersionsRequest(
            client_software_name="test", client_software_version="1", cluster_id=cluster_id, node_id=node_id
        )
        response = await connection.request(request, ApiVersionsResponse, version=5)
        assert response.error_code == expected
        assert bool(response.api_keys) == (expected is ErrorCode.NONE)
        # A client that does not know the version asks for less.
        older = await connection.request(request, ApiVersionsResponse, version=4)
        assert older.error_code == ErrorCode.NONE
