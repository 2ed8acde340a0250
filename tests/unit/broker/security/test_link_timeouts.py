"""How long a broker waits for another one to accept a connection (KIP-601)."""

import pytest

from barnabas.base.config.broker import BrokerConfig
from barnabas.broker.parts import listeners
from barnabas.broker.zookeeper_client.znodes import Endpoint
from barnabas.client.errors import ConnectionLost


async def test_connect_timeout_doubles_with_each_failure_up_to_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_ms: list[int] = []
    answers = iter([False, False, False, True, False])

    async def connect(*address: object, connect_timeout_ms: int, **more: object) -> str:
        waited_ms.append(connect_timeout_ms)
        if not next(answers):
            raise ConnectionLost("connection refused")
        return "a connection"

    monkeypatch.setattr(listeners, "open_connection", connect)
    settings = {"socket.connection.setup.timeout.ms": "100", "socket.connection.setup.timeout.max.ms": "300"}
    links = listeners.InterBrokerSecurity(BrokerConfig.parse({"zookeeper.connect": "h:1", **settings}))
    peer = Endpoint(listener="PLAINTEXT", security_protocol="PLAINTEXT", host="127.0.0.1", port=1)
    for succeeds in (False, False, False, True, False):
        if succeeds:
            await links.open(peer, "test")
        else:
            with pytest.raises(ConnectionLost):
                await links.open(peer, "test")
    assert waited_ms == [100, 200, 300, 300, 100]
