"""Lets the other brokers notice that the controller's process is dead before its ZooKeeper session expires.

Owner: the event loop.
"""

import asyncio
from collections.abc import Callable

from barnabas.broker.controller.lifeline import Connect, Lifeline
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint


class ControllerWatch:
    """Keeps a connection to one broker at a time."""

    def __init__(
        self,
        *,
        listener: str,
        connect: Connect,
        on_refused: Callable[[int], None],
        keep: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._listener = listener
        self._connect = connect
        #: Called with the broker's id when its port refuses connections.
        self._on_refused = on_refused
        #: Takes over a task until it has ended.
        self._keep = keep
        self._watched: tuple[int, Endpoint] | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, broker: BrokerRegistration | None) -> None:
        """Watch this broker from now on instead of the former one; None ends the watching."""
        endpoint = None if broker is None else broker.endpoint(self._listener)
        watched = None if broker is None or endpoint is None else (broker.id, endpoint)
        if watched == self._watched:
            return
        self.stop()
        if watched is not None:
            broker_id, endpoint = self._watched = watched
            lifeline = Lifeline(
                broker_id, endpoint, connect=self._connect, on_refused=lambda: self._on_refused(broker_id)
            )
            self._task = asyncio.get_running_loop().create_task(lifeline.keep(), name=f"lifeline-to-broker-{broker_id}")
            self._keep(self._task)

    def stop(self) -> None:
        self._watched = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
