"""ReportToNeighbour v0, between brokers, and DescribeNeighbours v0, for tools. Both are our own."""

from collections.abc import Callable

from barnabas.base.words import AclOperation
from barnabas.broker.features.neighbours.members import Members
from barnabas.broker.features.neighbours.watch import Watch
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.wire.messages.describe_neighbours import (
    DescribedMember,
    DescribedNeighbour,
    DescribedStranger,
    DescribeNeighboursRequest,
    DescribeNeighboursResponse,
)
from barnabas.wire.messages.report_to_neighbour import ReportToNeighbourRequest, ReportToNeighbourResponse


class NeighboursApi:
    def __init__(
        self, context: BrokerContext, watch: Watch, members: Members, zookeeper_away_ms: Callable[[], int | None]
    ) -> None:
        self._context = context
        self._watch = watch
        self._members = members
        self._zookeeper_away_ms = zookeeper_away_ms

    @serves("ReportToNeighbour", refusal())
    def report(self, call: Call, request: ReportToNeighbourRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        away_ms = request.zookeeper_away_ms
        self._watch.hear(request.broker_id, call.channel.peer_host, None if away_ms < 0 else away_ms)
        return ReportToNeighbourResponse(now_ms=self._context.clock.now_ms())

    @serves("DescribeNeighbours", refusal())
    def describe(self, call: Call, request: DescribeNeighboursRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.DESCRIBE)
        now_ms, away_ms = self._watch.now_ms(), self._zookeeper_away_ms()
        return DescribeNeighboursResponse(
            broker_id=self._context.broker_id,
            now_ms=self._context.clock.now_ms(),
            zookeeper_away_ms=-1 if away_ms is None else away_ms,
            neighbours=[
                DescribedNeighbour(
                    broker_id=broker,
                    failing_ms=-1 if each.failing_since_ms is None else now_ms - each.failing_since_ms,
                    reason=each.reason,
                    is_untrusted=each.is_untrusted,
                    answered_ms_ago=-1 if each.answered_at_ms is None else now_ms - each.answered_at_ms,
                    round_trip_ms=-1 if each.round_trip_ms is None else each.round_trip_ms,
                    clock_ahead_ms=each.clock_ahead_ms,
                )
                for broker, each in sorted(self._watch.neighbours.items())
            ],
            strangers=[
                DescribedStranger(
                    broker_id=broker,
                    host=each.host,
                    heard_ms_ago=now_ms - each.at_ms,
                    zookeeper_away_ms=-1 if each.zookeeper_away_ms is None else each.zookeeper_away_ms,
                )
                for broker, each in sorted(self._watch.strangers().items())
            ],
            zookeeper_members=[
                DescribedMember(
                    address=name,
                    failing_ms=-1 if each.failing_since_ms is None else now_ms - each.failing_since_ms,
                    reason=each.reason,
                    is_up=each.is_up,
                    is_behind=each.is_behind,
                )
                for name, each in self._members.members.items()
            ],
        )
