"""A cluster for asyncio: the core of the client on an event loop. All decisions are in `client.core`.

Owner: the event loop. `AsyncClient` is an async context manager; leaving it closes every connection. Time and
connections come from the loop, so a simulation can provide both.
"""

import asyncio
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Self, TypeVar, cast

from barnabas.client.config import ClientConfig
from barnabas.client.connection import Connection, authenticate, open_connection
from barnabas.client.core import DATA, ClientCore
from barnabas.client.errors import ClientError
from barnabas.client.security import ClientSecurity

T = TypeVar("T")


class _AsyncioIo:
    def __init__(self, config: ClientConfig, security: ClientSecurity | None) -> None:
        self._config = config
        self._security = security or ClientSecurity.of(config.security_protocol, config.security)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def connect(self, host: str, port: int) -> Connection:
        config = self._config
        return await open_connection(
            host,
            port,
            client_id=config.client_id,
            ssl_context=self._security.tls,
            authenticate=partial(authenticate, security=self._security, timeout_ms=config.request_timeout_ms),
            connect_timeout_ms=config.connect_timeout_ms,
            request_timeout_ms=config.setup_timeout_ms,
            max_in_flight=config.max_in_flight,
            response_bytes_max=config.response_bytes_max,
            response_elements_max=config.response_elements_max,
        )

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def together(self, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T | ClientError]:
        if len(tasks) == 1:
            try:
                return [await tasks[0]]
            except ClientError as error:
                return [error]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClientError):
                raise outcome
        return cast(list[T | ClientError], outcomes)


class AsyncClient(ClientCore):
    """`async with AsyncClient(client_config("localhost:9092")) as cluster`, then `client.admin`, `Producer`, `Consumer`."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        chance: random.Random | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`security` replaces the security settings of `config`: a delegated token, for example, has no setting."""
        io = _AsyncioIo(config, security)
        super().__init__(config, io, chance=chance or random.Random(), fails_early=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for link in self.drop_links():
            await cast(Connection, link).wait_closed()

    async def connection(self, broker_id: int, *, purpose: str = DATA) -> Connection:
        """Like `link`, but typed as a `Connection`."""
        return cast(Connection, await self.link(broker_id, purpose=purpose))

    async def any_connection(self) -> Connection:
        """Return a connection to any broker that answers."""
        return cast(Connection, await self.any_link())
