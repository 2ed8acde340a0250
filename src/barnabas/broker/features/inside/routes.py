"""The table of paths and views."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from barnabas.base.host.disk import Disk
from barnabas.base.ids import TopicPartition
from barnabas.broker.features.inside import cluster, partition, requests, znodes
from barnabas.broker.replication.partition import Partition
from barnabas.broker.runtime.timers import Timers
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.listener import SocketServer
from barnabas.broker.server.metrics_http import Document, Query, Unanswered, View
from barnabas.broker.server.pipeline import Pipeline
from barnabas.broker.zookeeper_client.session import ZooKeeperSession

T = TypeVar("T")


class InsideRoutes:
    """Owner: the event loop."""

    def __init__(
        self,
        context: BrokerContext,
        session: ZooKeeperSession,
        server: SocketServer,
        pipeline: Pipeline,
        *,
        disk: Disk,
        timers: Timers,
        on_thread: Callable[[Callable[[], list[dict[str, Any]]]], Awaitable[list[dict[str, Any]]]],
    ) -> None:
        self._context = context
        self._session = session
        self._server = server
        self._disk = disk
        self._timers = timers
        self._on_thread = on_thread
        self._trace = requests.RequestTrace(pipeline, timers, context.clock.now_ms)
        self.views: Mapping[bytes, View] = {
            b"/inside": self._broker,
            b"/inside/partition": self._partition,
            b"/inside/producers": self._producers,
            b"/inside/waiting": self._waiting,
            b"/inside/requests": self._requests,
            b"/inside/controller": self._controller,
            b"/inside/transactions": self._transactions,
            b"/inside/znode": self._znode,
        }

    async def _broker(self, query: Query) -> Document:
        """Identify this broker: a console finds out which broker is at an address."""
        context = self._context
        partitions = list(context.replicas)
        return {
            "broker": context.broker_id,
            "cluster": context.cluster_id,
            "broker_epoch": context.broker_epoch(),
            "controller": context.controller.controller_id,
            "now_ms": context.clock.now_ms(),
            "zookeeper_session": f"0x{self._session.session_id:x}",
            "replicas": len(partitions),
            "leaders": sum(each.is_leader for each in partitions),
            "views": [path.decode() for path in self.views],
        }

    def _found(self, query: Query) -> Partition:
        topic, number = query.get("topic"), query.get("partition", "0")
        if topic is None or not (number.isascii() and number.isdigit()):
            raise Unanswered(400, "name a partition: ?topic=orders&partition=0")
        found = self._context.replicas.hosted.get(TopicPartition(topic, int(number)))
        if found is None:
            raise Unanswered(404, f"no replica of {topic}-{number} on broker {self._context.broker_id}")
        return found

    async def _partition(self, query: Query) -> Document:
        found = self._found(query)
        view = partition.replica(found, now_ms=self._context.clock.now_ms())
        if found.log is not None and query.get("segments") == "true":
            last = partition.last_segments(found.log)
            view["segments"] = await self._on_thread(lambda: partition.segments(last, self._disk))
        return view

    async def _producers(self, query: Query) -> Document:
        log = self._found(query).log
        if log is None:
            raise Unanswered(404, "the log directory of this replica has failed")
        return partition.producers(log, now_ms=self._context.clock.now_ms())

    async def _waiting(self, query: Query) -> Document:
        now_s = self._timers.time()
        return requests.waiting(self._server.connections, self._context.replicas.hosted, now_s=now_s)

    async def _requests(self, query: Query) -> Document:
        return self._trace.view(query.get("api"))

    async def _controller(self, query: Query) -> Document:
        return cluster.decisions(self._context.controller)

    async def _transactions(self, query: Query) -> Document:
        return cluster.transactions(self._context.transactions.machines, now_ms=self._context.clock.now_ms())

    async def _znode(self, query: Query) -> Document:
        return await znodes.znode(self._session, query.get("path", "/"))
