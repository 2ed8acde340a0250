"""Handle a topic that does not exist in tools that read or write it, so that a typo does not silently create a topic."""

import asyncio
import contextlib

from barnabas.base.errors import ErrorCode
from barnabas.base.names import did_you_mean
from barnabas.cli._command import complain
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import BrokerRefused, ClientError

#: A broker may learn of a new topic a moment late: it has just started, or another broker created the topic.
_DOUBT_S = 0.5
_LOOK_EVERY_S = 1.0


async def missing(cluster: AsyncClient, topic: str) -> str | None:
    """Return `there is no topic x; did you mean y?`, or None if the topic exists or this user may not see whether it does."""
    if not await _is_missing(cluster, topic):
        return None
    await asyncio.sleep(_DOUBT_S)
    if not await _is_missing(cluster, topic):
        return None
    known: list[str] = []
    with contextlib.suppress(ClientError):  # the message then lacks the suggestion
        known = [name for name, info in (await cluster.all_topics()).items() if not info.internal]
    return f"there is no topic {topic}{did_you_mean(topic, known)}"


async def wait_until_created(cluster: AsyncClient, topic: str, *, timeout_ms: int) -> bool:
    """Wait until the topic exists, with a warning if it is missing; return whether it was. `timeout_ms` < 0: no limit.

    :raises BrokerRefused: if it still does not exist after that time.
    """
    words = await missing(cluster, topic)
    if words is None:
        return False
    separator = "" if words.endswith("?") else "."
    complain(f"warning: {words}{separator} Waiting until it is created; this command does not create it")
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_ms / 1000 if timeout_ms >= 0 else float("inf")
    while await _is_missing(cluster, topic):
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            raise BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
        await asyncio.sleep(min(_LOOK_EVERY_S, left_s))
    return True


async def warn_of_creation(cluster: AsyncClient, topic: str) -> None:
    """Warn a producer that its first record creates the topic, as with Kafka's producer."""
    if (words := await missing(cluster, topic)) is not None:
        separator = "" if words.endswith("?") else "."
        complain(
            f"warning: {words}{separator} The first record creates it, if auto.create.topics.enable is set on the brokers"
        )


async def _is_missing(cluster: AsyncClient, topic: str) -> bool:
    info = (await cluster.topics([topic])).get(topic)
    return info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
