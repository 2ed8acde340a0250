"""Addresses of the brokers' internal views, and requests to them: `--inside`.

`auto` asks the brokers: their settings say whether the views are on, and the port. A broker that picks a free port cannot
publish it in its settings: then the addresses must be given. An address may contain `{host}` and `{id}` of a broker.

The views do not know users. So a user must have the right to read the brokers' settings (DescribeConfigs on the cluster): as
everywhere, the cluster decides.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx

from barnabas.base.errors import ConfigError
from barnabas.base.hosts import bracketed
from barnabas.base.words import ConfigResourceType
from barnabas.client.admin.configs import describe_configs
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.image import Broker
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import Refusal
from barnabas.services.registry.values import json_values

AUTO: Final = "auto"
NONE: Final = "none"
_ENABLE, _HOST, _PORT = "barnabas.inside.enable", "barnabas.metrics.host", "barnabas.metrics.port"
#: Bind addresses that other machines cannot use: use the broker's own host instead.
_ANYWHERE: Final = ("", "0.0.0.0", "::")
#: Short, because a user is waiting, and a failed broker must not delay the others' answers.
_TIMEOUT_S: Final = 3.0
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """One broker's answer, or its error."""

    broker: int
    answer: Mapping[str, Any] | None = None
    error: str | None = None

    def row(self) -> dict[str, Any]:
        return {"broker": self.broker, "error": self.error, "view": self.answer}


class InsideSources:
    """Owner: the event loop."""

    def __init__(self, wanted: str) -> None:
        """:raises ConfigError: if an address is not valid."""
        self._is_auto = wanted == AUTO
        self._is_off = wanted == NONE
        self._addresses = [] if self._is_auto or self._is_off else [_checked(each) for each in wanted.split(",")]
        self._http: httpx.AsyncClient | None = None
        #: Addresses of brokers found earlier: used even while a broker is down.
        self._known: dict[int, str] = {}

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    # -- addresses ----------------------------------------------------------------------------------------------------

    async def urls(self, cluster: ConsoleCluster) -> tuple[dict[int, str], dict[int, str]]:
        """Return addresses by broker, and reasons for brokers without one. :raises Refusal: if the user may not see the
        views."""
        if self._is_off:
            raise Refusal(404, "NO_INSIDE", "this console was started with --inside none")
        brokers = (await cluster.image()).brokers
        why: dict[int, str] = {}
        # Also with given addresses: the cluster decides who may see the views.
        said = await asyncio.gather(*(self._of_settings(cluster, broker) for broker in brokers.values()))
        for broker, found in zip(brokers.values(), said, strict=True):
            if found.startswith("http"):
                if self._is_auto:
                    self._known[broker.id] = found
            elif self._is_auto:
                why[broker.id] = found
                self._known.pop(broker.id, None)
        if self._addresses:
            await self._resolve(brokers.values())
        return dict(self._known), why

    async def _of_settings(self, cluster: ConsoleCluster, broker: Broker) -> str:
        """Return the address, or the reason why there is none."""
        key = (ConfigResourceType.BROKER, str(broker.id))

        async def ask() -> str:
            try:
                entries = (await describe_configs(cluster.client, [key]))[key]
            except BrokerRefused:
                raise
            except ClientError as error:
                return str(error)
            settings = {entry.name: entry.value or "" for entry in entries}
            # Apache's brokers do not know the setting, and ours list defaults only of Kafka's settings.
            if settings.get(_ENABLE) != "true":
                return f"{_ENABLE} is not true"
            if settings.get(_PORT) in ("0", ""):
                return f"{_PORT}=0 picks a free port: start the console with --inside URL"
            host = settings.get(_HOST) or "127.0.0.1"
            return f"http://{bracketed(broker.host if host in _ANYWHERE else host)}:{settings[_PORT]}"

        # Settings of a broker with the views on only change with a restart, during which it does not answer.
        return await cluster.kept(("inside settings", broker.id), 300.0 if broker.id in self._known else 10.0, ask)

    async def _resolve(self, brokers: Iterable[Broker]) -> None:
        plain: list[str] = []
        for address in self._addresses:
            if "{" not in address:
                plain.append(address)
                continue
            for broker in brokers:
                host = bracketed(broker.host)
                self._known[broker.id] = address.replace("{host}", host).replace("{id}", str(broker.id))
        unknown = [address for address in plain if address not in self._known.values()]
        for address, said in zip(unknown, await asyncio.gather(*map(self._broker_id, unknown)), strict=True):
            if said is not None:
                self._known[said] = address

    async def _broker_id(self, address: str) -> int | None:
        answer = await self._get(f"{address}/inside")
        return answer["broker"] if isinstance(answer, dict) and isinstance(answer.get("broker"), int) else None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(
        self, cluster: ConsoleCluster, view: str, brokers: Iterable[int] | None = None, **query: str
    ) -> list[Asked]:
        """Ask brokers the same question concurrently: all that offer the views, or these."""
        urls, why = await self.urls(cluster)
        wanted = sorted(set(urls) | set(why)) if brokers is None else list(brokers)
        path = "/inside" + (f"/{view}" if view else "") + (f"?{urlencode(query)}" if query else "")
        return list(await asyncio.gather(*(self._one(cluster, each, urls, why, path) for each in wanted)))

    async def _one(
        self, cluster: ConsoleCluster, broker: int, urls: Mapping[int, str], why: Mapping[int, str], path: str
    ) -> Asked:
        if broker not in urls:
            return Asked(broker, error=why.get(broker, "the address of this broker's internal views is unknown"))
        answer = await cluster.kept(("inside", broker, path), 0.4, lambda: self._get(urls[broker] + path))
        if isinstance(answer, str):
            cluster.outdated(("inside settings", broker))
            return Asked(broker, error=answer)
        return Asked(broker, answer)

    async def _get(self, url: str) -> dict[str, Any] | str:
        """Return the document, or an error message."""
        if self._http is None:
            self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False)
        try:
            # Not compressed: a few bytes could become gigabytes.
            async with self._http.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
                data = bytearray()
                async for part in response.aiter_raw():
                    data += part
                    if len(data) > _ANSWER_BYTES_MAX:
                        return f"answered with more than {_ANSWER_BYTES_MAX} bytes"
            document = json_values.read(bytes(data))
        except httpx.HTTPError as error:
            return f"does not answer: {error or type(error).__name__}"
        except (ValueError, RecursionError):
            return f"answered {response.status_code} without JSON"
        if not isinstance(document, dict):
            return "did not answer with a JSON object"
        return document if response.status_code == 200 else str(document.get("error", response.status_code))


def _checked(text: str) -> str:
    address = text.strip().rstrip("/")
    parts = urlsplit(address.replace("{host}", "host").replace("{id}", "1"))
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good or "{" in parts.geturl():
        raise ConfigError(
            f"--inside {text.strip()} is not an address: give http://HOST:PORT of each broker's metrics port, "
            "http://{host}:9404 for all of them, auto or none"
        )
    return address
