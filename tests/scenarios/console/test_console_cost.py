"""The console's cost for the brokers: one request for all viewers, and fewer while nothing changes."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.client.connection import Connection
from barnabas.testing import Cluster
from tests.scenarios.console.conftest import DEADLINE_S, Console
from tests.scenarios.console.test_console_groups import committed
from tests.scenarios.console.test_console_messages import produce


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Requests of this process's clients, by name."""
    count: Counter[str] = Counter()
    request = Connection.request

    async def counting(self: Connection, message: Any, *rest: Any, **more: Any) -> Any:
        count[type(message).__name__.removesuffix("Request")] += 1
        return await request(self, message, *rest, **more)

    monkeypatch.setattr(Connection, "request", counting)
    yield count


def in_loop(console: Console, make: Callable[[Any], Any]) -> Any:
    """`make` is given the console's own view of the cluster."""

    async def run() -> Any:
        return await make(console.server.app.state.services.guard._own.cluster)

    return asyncio.run_coroutine_threadsafe(run(), console.loop).result(DEADLINE_S)


def test_ends_that_several_want_at_once_are_one_question(
    console: Console, cluster: Cluster, topic: Callable[..., str], asked: Counter[str]
) -> None:
    name = topic(partitions=4)
    produce(cluster, name, [{"value": "v", "partition": 2}] * 3)
    console.get(f"/api/topics/{name}")
    asked.clear()

    async def ask(own: Any) -> Any:
        wanted = [[TopicPartition(name, each) for each in some] for some in ((0, 1), (1, 2), (2, 3), (2,))]
        return await asyncio.gather(*(own.offsets.ends(some, -1.0) for some in wanted))

    found = in_loop(console, ask)
    assert [len(each) for each in found] == [0, 0, 0, 0], "nothing is younger than it is"
    assert asked["ListOffsets"] == 1


def test_group_without_members_is_asked_for_rarely_in_lists_and_at_once_on_its_page(
    console: Console, cluster: Cluster, topic: Callable[..., str], asked: Counter[str]
) -> None:
    name, group = topic(), f"idle-{uuid4()}"
    committed(cluster, group, name, {0: 0})

    async def listed(own: Any) -> None:
        own.outdated("groups")
        assert (await own.lag.groups()).get(group).state == "Empty"

    in_loop(console, listed)
    in_loop(console, lambda own: own.lag.committed([group], 0.0, idle_age_s=60.0))
    asked.clear()
    found = in_loop(console, lambda own: own.lag.committed([group], 0.0, idle_age_s=60.0))
    assert found == {group: {TopicPartition(name, 0): 0}} and not asked["OffsetFetch"]
    in_loop(console, lambda own: own.lag.committed([group], 0.0))
    assert asked["OffsetFetch"] == 1


def test_feeds_are_asked_again_at_once_after_a_change(console: Console, topic: Callable[..., str]) -> None:
    name = topic(partitions=1)
    with console.watching(f"/api/topics/{name}") as events:
        for key, data in events:
            if name in key and json.loads(data)["partitions"] == 1:
                break
        assert isinstance(console.change("POST", f"/api/topics/{name}/partitions", {"partitions": 3}), dict)
        for key, data in events:
            if name in key and json.loads(data)["partitions"] == 3:
                break
