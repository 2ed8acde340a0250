"""While ZooKeeper is unavailable, refuses requests that need it after seconds, instead of letting them wait.

Requests wait through a short absence (a fail-over of the ensemble, a restart). Kafka's admin clients understand
REQUEST_TIMED_OUT: the request may be tried again, and may have been carried out. Owner: the event loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.times import utc
from barnabas.broker.server.call import Call
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.versions import api_named

#: How long ZooKeeper may be unavailable before requests are refused.
PATIENCE_S: Final = 5.0
#: APIs that cannot be answered without it. Requests of controllers and coordinators wait: their senders wait for ZooKeeper too.
NEEDS_ZOOKEEPER: Final = frozenset(
    api_named(name).key
    for name in (
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "CreateAcls",
        "DeleteAcls",
        "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
        "DescribeClientQuotas",
        "AlterClientQuotas",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "AlterPartitionReassignments",
        "ElectLeaders",
    )
)
#: APIs that need it for some requests: they begin all the same, and are refused if they do not end soon.
MAY_NEED_ZOOKEEPER: Final = frozenset({api_named("DescribeConfigs").key})
#: How long these may take while ZooKeeper is unavailable.
GRACE_S: Final = 0.5

Refuse = Callable[[Call, ApiMessage | None, Exception], None]


class ZooKeeperGate:
    def __init__(
        self,
        session: ZooKeeperSession,
        timers: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        on_closed: Callable[[frozenset[int]], None],
        refuse: Refuse,
    ) -> None:
        """`on_closed` is called with the APIs that are closed from now on: those that need ZooKeeper, or none."""
        self._session = session
        self._timers = timers
        self._clock = clock
        self._on_closed = on_closed
        self._refuse = refuse
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._waiting: dict[Call, ApiMessage | None] = {}
        session.on_state(self._state_changed)

    def begin(self, call: Call, request: ApiMessage | None) -> None:
        """Register a request that has begun and needs ZooKeeper."""
        self._waiting[call] = request
        if self._is_closed:
            self._timers.call_later(GRACE_S, self._refuse_if_waiting, call)

    def end(self, call: Call) -> None:
        self._waiting.pop(call, None)

    def why_closed(self) -> ConnectionLost:
        return ConnectionLost(f"{self._since()}; nothing was changed")

    def _since(self) -> str:
        now_s = self._timers.time()
        away_s = now_s - (self._session.away_since_s or now_s)
        since = utc(self._clock.now_ms() - round(away_s * 1000))
        return f"{self._session.hosts} has not answered since {since}"

    def _state_changed(self, state: SessionState) -> None:
        if state in (SessionState.CONNECTED, SessionState.RENEWED):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._is_closed = False
            self._on_closed(frozenset())
        elif self._timer is None:
            self._timer = self._timers.call_later(PATIENCE_S, self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._on_closed(NEEDS_ZOOKEEPER)
        for call in list(self._waiting):
            self._refuse_if_waiting(call)

    def _refuse_if_waiting(self, call: Call) -> None:
        if call in self._waiting and self._is_closed:
            request = self._waiting.pop(call)
            self._refuse(call, request, ConnectionLost(f"{self._since()}; the request may still be carried out"))
