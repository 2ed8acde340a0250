"""One user's view of the cluster: a client with that user's credentials, and a cache of answers.

Owner: the event loop. Because of `kept`, many viewers cost as much as one: identical questions within a moment share one
answer, and a question that is already in flight is not sent twice. Slow answers are requested less often, so that no cluster
spends more than a small part of its time on its console.
"""

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from barnabas.base.errors import ErrorCode
from barnabas.base.recent import Recent
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError
from barnabas.client.image import ClusterImage, TopicInfo
from barnabas.client.security import ClientSecurity
from barnabas.services.console.collector import Collector
from barnabas.services.console.errors import Refusal, not_found
from barnabas.services.console.lag import LagBook
from barnabas.services.console.offsets import Offsets
from barnabas.services.console.reading import Tails
from barnabas.services.console.services import Tasks

T = TypeVar("T")

#: A user is waiting: report an unreachable cluster after seconds.
_TIMEOUT_MS: Final = 10_000
_KEPT_MAX: Final = 2_000
#: An answer that took one second is requested again after this many seconds: half a percent of a broker's time.
_PACE: Final = 200


@dataclass(slots=True)
class _Kept:
    value: Any
    at_s: float
    took_s: float


class ConsoleCluster:
    def __init__(self, config: ClientConfig, tasks: Tasks, *, security: ClientSecurity | None = None) -> None:
        self.client = AsyncClient(
            dataclasses.replace(
                config,
                client_id="barnabas-console",
                request_timeout_ms=min(config.request_timeout_ms, _TIMEOUT_MS),
                api_timeout_ms=min(config.api_timeout_ms, _TIMEOUT_MS),
            ),
            security=security,
        )
        self.tasks = tasks
        self.collector = Collector(tasks)
        self.offsets = Offsets(self)
        self.tails = Tails(self)
        self.lag = LagBook(self)
        #: Number of partitions of the whole cluster, as far as known.
        self.partitions = 0
        self._kept: Recent[object, _Kept] = Recent(_KEPT_MAX)
        self._remembered: Recent[object, Any] = Recent(_KEPT_MAX)
        self._asking: dict[object, asyncio.Future[Any]] = {}

    async def close(self) -> None:
        self.collector.stop()
        self.tails.stop()
        self.lag.stop()
        await self.client.close()

    async def kept(self, key: object, max_age_s: float, ask: Callable[[], Awaitable[T]], *, paced_s: float = 0.0) -> T:
        """Return an answer of `ask` no older than `max_age_s`; if asking takes long, it may be as old as `paced_s`."""
        found = self._kept.get(key)
        now_s = asyncio.get_running_loop().time()
        if found is not None:
            allowed_s = max(max_age_s, min(found.took_s * _PACE, paced_s))
            if now_s - found.at_s <= allowed_s:
                self._kept.use(key)
                return cast(T, found.value)
        if key not in self._asking:
            self._asking[key] = asyncio.get_running_loop().create_future()
            # A task of its own, so that one viewer who leaves does not cancel the answer for the others.
            self.tasks.start(self._ask(key, ask), f"ask {key}")
        return cast(T, await asyncio.shield(self._asking[key]))

    @staticmethod
    def paced_s(items: int, most_s: float) -> float:
        """Return the maximum age of an answer with this many items: 10,000 items are asked for every `most_s`, hundreds every
        second."""
        return max(1.0, min(items / 10_000, 2.0) * most_s)

    async def _ask(self, key: object, ask: Callable[[], Awaitable[Any]]) -> None:
        future = self._asking[key]
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            value = await ask()
        except Exception as error:
            future.set_exception(error)
            future.exception()  # marks the error as retrieved: all callers may have gone
        except asyncio.CancelledError:
            future.cancel()
            raise
        else:
            self._kept.put(key, _Kept(value, loop.time(), loop.time() - began_s))
            future.set_result(value)
        finally:
            del self._asking[key]

    def remembered(self, key: object, make: Callable[[], T]) -> T:
        """Return observations over time, which `forget` keeps after changes."""
        found = self._remembered.use(key)
        if found is None:
            found = make()
            self._remembered.put(key, found)
        return cast(T, found)

    def forget(self) -> None:
        """Clear the cache after a change, so that the next answer shows it."""
        self._kept.clear()
        self.offsets.forget()
        self.lag.forget()
        self.collector.ask_again()

    def outdated(self, key: object) -> None:
        """Drop a cached answer that has turned out to be wrong."""
        self._kept.pop(key)

    # -- metadata -------------------------------------------------------------------------------------------------------

    async def image(self, *, age_s_max: float = math.inf) -> ClusterImage:
        async def ask() -> ClusterImage:
            image = await self.client.retrying("metadata", lambda: self.client.refresh(None))
            self.partitions = sum(len(topic.partitions) for topic in image.topics.values())
            return image

        age_s = min(self.paced_s(self.partitions, 30.0), age_s_max)
        return await self.kept("image", age_s, ask, paced_s=min(5.0, age_s_max))

    async def topic(self, name: str) -> TopicInfo:
        async def ask() -> TopicInfo | None:
            return (await self.client.topics([name])).get(name)

        info = await self.kept(("topic", name), 1.0, ask)
        if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise not_found(f"there is no topic {name}")
        if info.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise Refusal(403, info.error.name, f"not allowed to see the topic {name}, if there is one")
        return info

    async def on_brokers(self, ask: Callable[[int], Awaitable[T]]) -> dict[int, T | ClientError]:
        """Ask every broker the same question concurrently; a broker that does not answer is mapped to its error."""

        async def one(broker_id: int) -> T:
            return await ask(broker_id)

        brokers = sorted((await self.image()).brokers)
        answers = await self.client.io.together([one(broker_id) for broker_id in brokers])
        return dict(zip(brokers, answers, strict=True))
