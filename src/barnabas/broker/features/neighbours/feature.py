"""Part of every broker."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.base.ids import BrokerId
from barnabas.base.metrics.registry import Row
from barnabas.broker.features.neighbours.api import NeighboursApi
from barnabas.broker.features.neighbours.members import Members
from barnabas.broker.features.neighbours.watch import Neighbour, Watch
from barnabas.broker.parts.feature import Host, Plugin
from barnabas.broker.zookeeper_client.ensemble import MemberAnswer, ask_member, members_of
from barnabas.client.errors import RequestTimedOut, check
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.report_to_neighbour import ReportToNeighbourRequest, ReportToNeighbourResponse

#: Time limits of a report, and of opening a connection: with TLS and a login it takes eight round trips.
REPORT_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 10.0
#: Time limit of a question to a member of ZooKeeper's ensemble.
MEMBER_TIMEOUT_S: Final = 5.0


class NeighboursPlugin(Plugin):
    def __init__(self, host: Host) -> None:
        context = host.context
        self._host = host
        self._lane = host.connections.lane("neighbours")
        self.watch = Watch(context.clock, others=self._others, report=self._report, reconnect=self._reconnect)
        self.members = Members(context.clock, self._ensemble(), self._ask_member)
        self.apis = (NeighboursApi(context, self.watch, self.members, self._zookeeper_away_ms),)
        self._add_gauges()

    def start(self) -> None:
        self._host.spawn(self.watch.run(), "neighbours")
        if self.members.members:
            self._host.spawn(self.members.run(), "members of ZooKeeper")

    def _ensemble(self) -> list[tuple[str, int]]:
        """Return the members to ask. A single server needs no question: the session shows whether it works."""
        found = members_of(self._host.context.config.zookeeper_connect)
        is_simulated = self._host.platform.zookeeper is not None
        return found if len(found) > 1 and not is_simulated else []

    async def _ask_member(self, host: str, port: int) -> MemberAnswer:
        has_tls = self._host.context.config.zookeeper_ssl_client_enable
        return await ask_member(host, port, timeout_s=MEMBER_TIMEOUT_S, has_tls=has_tls)

    def _others(self) -> set[BrokerId]:
        context = self._host.context
        return {broker for broker in context.metadata.brokers if broker != context.broker_id}

    def _zookeeper_away_ms(self) -> int | None:
        since_s = self._host.session.away_since_s
        return None if since_s is None else int((self._host.timers.time() - since_s) * 1000)

    async def _reconnect(self, broker: BrokerId) -> None:
        self._lane.leave(lambda each: each == broker)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._lane.to(broker)
        except TimeoutError:
            raise RequestTimedOut(f"no connection within {CONNECT_TIMEOUT_S:.0f} s") from None

    async def _report(self, broker: BrokerId) -> int | None:
        """Send a report. Brokers that do not know this API, as Apache Kafka's, are asked for their versions instead."""
        away_ms = self._zookeeper_away_ms()
        request = ReportToNeighbourRequest(
            broker_id=self._host.context.broker_id, zookeeper_away_ms=-1 if away_ms is None else away_ms
        )
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                connection = await self._lane.to(broker)
                if ReportToNeighbourRequest.API_KEY not in connection.versions.apis:
                    await connection.request(ApiVersionsRequest(), ApiVersionsResponse)
                    return None
                answer = await connection.request(request, ReportToNeighbourResponse)
        except TimeoutError:
            raise RequestTimedOut(f"no answer within {REPORT_TIMEOUT_S:.0f} s") from None
        check(answer.error_code, answer.error_message)
        return answer.now_ms

    def _add_gauges(self) -> None:
        def rows(read: Callable[[Neighbour], float | None]) -> Callable[[], Iterator[Row]]:
            def of_neighbours() -> Iterator[Row]:
                for broker, neighbour in sorted(self.watch.neighbours.items()):
                    if (value := read(neighbour)) is not None:
                        yield {"broker": str(broker)}, value

            return of_neighbours

        def failing_s(neighbour: Neighbour) -> float:
            since_ms = neighbour.failing_since_ms
            return 0.0 if since_ms is None else (self.watch.now_ms() - since_ms) / 1000

        registry = self._host.context.registry
        registry.table(
            "barnabas_neighbour_unreachable_seconds",
            "How long another broker of the cluster has not been reachable from this one; 0 if it is.",
            rows(failing_s),
        )
        registry.table(
            "barnabas_neighbour_round_trip_ms",
            "Time from a request to another broker to its answer.",
            rows(lambda neighbour: neighbour.round_trip_ms),
        )
        registry.table(
            "barnabas_neighbour_clock_ahead_ms",
            "How far another broker's clock is ahead of this one's.",
            rows(lambda neighbour: neighbour.clock_ahead_ms),
        )
        registry.table(
            "barnabas_neighbour_outside",
            "1 for each broker that runs and reports here, but is not in the cluster.",
            lambda: (({"broker": str(broker)}, 1.0) for broker in sorted(self.watch.strangers())),
        )
        members = self.members.members.items
        registry.table(
            "barnabas_zookeeper_member_serving",
            "1 for each member of ZooKeeper's ensemble that serves, 0 for one that does not, as this broker reaches them.",
            lambda: (({"member": name}, float(each.failing_since_ms is None)) for name, each in members()),
        )
        registry.table(
            "barnabas_zookeeper_member_behind",
            "1 for each member of ZooKeeper's ensemble that lacks transactions of ten seconds ago.",
            lambda: (({"member": name}, float(each.is_behind)) for name, each in members()),
        )


build = NeighboursPlugin
