"""Small requests with long answers: the loop serves other clients while an answer is built, and a thread encodes it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.broker.api.metadata import MetadataApi
from barnabas.broker.compose import Broker
from barnabas.broker.controller.topics import TopicAdmin
from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.broker.server.call import Call
from barnabas.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsResponse
from barnabas.wire.messages.create_acls import CreateAclsResponse
from barnabas.wire.messages.create_topics import CreateTopicsResponse
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from barnabas.wire.messages.fetch import FetchResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataResponse
from tests.fuzz.answers import acls, fetched, known_topics, topics_to_create, users
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import run, zookeeper

COUNT = 3 * SLICE_ELEMENTS
SETTINGS = {
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "max.request.partition.size.limit": "100000",
}


class Turns:
    """Counts the turns of the loop between the first and the last call of a function, and the answers that a thread encoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self._now = 0
        self._seen: list[int] = []
        self.encoded_by_thread = 0
        original: Callable[..., Any] = getattr(owner, name)
        by_thread = Call.reply_by_thread

        def called(*args: Any, **kwargs: Any) -> Any:
            self._seen.append(self._now)
            return original(*args, **kwargs)

        def encode(call: Call, *args: Any) -> Any:
            self.encoded_by_thread += 1
            return by_thread(call, *args)

        monkeypatch.setattr(owner, name, called)
        monkeypatch.setattr(Call, "reply_by_thread", encode)

    async def go_round(self) -> None:
        while True:
            self._now += 1
            await asyncio.sleep(0)

    @property
    def count(self) -> int:
        return self._seen[-1] - self._seen[0]


def story(tmp_path: Path, tell: Callable[[Broker], Any], turns: Turns | None = None) -> None:
    async def whole() -> None:
        async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, SETTINGS) as broker:
            clock = asyncio.create_task(turns.go_round()) if turns is not None else None
            await tell(broker)
            if clock is not None:
                clock.cancel()

    run(whole())


def test_thousands_of_topics_are_described_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, MetadataApi, "_topic")

    async def tell(broker: Broker) -> None:
        await ask(broker, known_topics(broker, COUNT), UpdateMetadataResponse, version=7)
        response = await ask(broker, MetadataRequest(topics=None), MetadataResponse, version=12)
        assert {topic.name for topic in response.topics} == {f"topic-{number}" for number in range(COUNT)}
        assert response.cluster_id and len(response.brokers) == 1

    story(tmp_path, tell, turns)
    assert turns.count >= 2 and turns.encoded_by_thread == 1


def test_thousands_of_partitions_are_described_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, MetadataApi, "_topic_partitions")

    async def tell(broker: Broker) -> None:
        await ask(broker, known_topics(broker, COUNT), UpdateMetadataResponse, version=7)
        request = DescribeTopicPartitionsRequest(response_partition_limit=100_000)
        response = await ask(broker, request, DescribeTopicPartitionsResponse, version=0)
        assert len(response.topics) == COUNT

    story(tmp_path, tell, turns)
    assert turns.count >= 2 and turns.encoded_by_thread == 1


def test_thousands_of_topics_are_planned_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, TopicAdmin, "_plan")

    async def tell(broker: Broker) -> None:
        request = topics_to_create(COUNT, 1, validate_only=True)
        response = await ask(broker, request, CreateTopicsResponse, version=7)
        assert [topic.error_code for topic in response.topics] == [0] * COUNT
        assert all(len(topic.configs or ()) > 20 for topic in response.topics)

    story(tmp_path, tell, turns)
    assert turns.count >= 5 and turns.encoded_by_thread == 1


def test_thousands_of_acls_and_users_are_created_and_described(tmp_path: Path) -> None:
    async def tell(broker: Broker) -> None:
        made = await ask(broker, acls(COUNT), CreateAclsResponse, version=3)
        assert [each.error_code for each in made.results] == [0] * COUNT
        anything = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        described = await ask(broker, anything, DescribeAclsResponse, version=3)
        assert sum(len(resource.acls) for resource in described.resources) == COUNT
        await ask(broker, users(2), AlterUserScramCredentialsResponse, version=0)
        wanted = DescribeUserScramCredentialsRequest(users=[UserName(name=f"user{number}") for number in range(COUNT)])
        found = await ask(broker, wanted, DescribeUserScramCredentialsResponse, version=0)
        assert [each.error_code for each in found.results[:2]] == [0, 0]
        assert {each.error_code for each in found.results[2:]} == {ErrorCode.RESOURCE_NOT_FOUND}
        assert len(found.results) == COUNT

    story(tmp_path, tell)


def test_client_that_fetches_more_partitions_than_the_limit_is_refused(tmp_path: Path) -> None:
    async def tell(broker: Broker) -> None:
        refused = await ask(broker, fetched(10_000), FetchResponse, version=12)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        served = await ask(broker, fetched(9_000), FetchResponse, version=12)
        assert served.error_code == 0

    story(tmp_path, tell)
