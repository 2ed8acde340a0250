"""Which APIs and versions our brokers can serve, by API key. Loads no message class.

Two questions are kept apart: what the protocol has (`API`, from the generated index) and what a given broker offers (the keys
that handlers were registered for, `advertise`). Request and response classes load at first use, a module an API.

Versions served are those of Kafka 4, which are also what Kafka 3.9 speaks with its own brokers and clients, with two
exceptions. Produce is advertised from version 0, because librdkafka will not compress for a broker that lacks it
(KAFKA-18659, Kafka 4 does the same); requests below version 3 are refused where they are handled. And the four requests by
which a ZooKeeper-mode controller rules its brokers are those of 3.9.
"""

from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import NamedTuple, cast

from barnabas.base.errors import Malformed
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.index import INDEX, IndexEntry

PRODUCE = 0
FETCH = 1
LEADER_AND_ISR = 4
STOP_REPLICA = 5
UPDATE_METADATA = 6
CONTROLLED_SHUTDOWN = 7
API_VERSIONS = 18

#: The controller's and the brokers' own; no client has a use for them.
INTER_BROKER = frozenset({LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN})

#: KRaft's: quorum, registration with a KRaft controller, forwarding to it. A ZooKeeper-mode broker serves none of them.
KRAFT_ONLY = frozenset({52, 53, 54, 55, 58, 59, 62, 63, 64, 70, 73, 80, 81, 82})


class VersionRange(NamedTuple):
    min_version: int
    max_version: int


class Api:
    """One API. `min_version` to `max_version` are served; Produce's classes begin at 3, though it is advertised from 0."""

    def __init__(self, key: int, entry: IndexEntry) -> None:
        self.key = key
        self.name = entry.name
        # librdkafka needs Produce from 0, see above.
        self.min_version = 0 if key == PRODUCE else entry.min_version
        self.max_version = entry.max_version
        self.request_flexible_from = entry.request_flexible_from
        self.response_flexible_from = entry.response_flexible_from
        self._module = f"barnabas.wire.messages.{entry.module}"

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} v{self.min_version}-{self.max_version}>"

    @cached_property
    def request_class(self) -> type[ApiMessage]:
        return cast(type[ApiMessage], getattr(import_module(self._module), f"{self.name}Request"))

    @cached_property
    def response_class(self) -> type[ApiMessage]:
        return cast(type[ApiMessage], getattr(import_module(self._module), f"{self.name}Response"))

    def request_header_version(self, version: int) -> int:
        """0 has no client id, 1 has one, 2 has tagged fields as well."""
        if self.key == CONTROLLED_SHUTDOWN and version == 0:
            return 0  # from before there were client ids
        return 2 if version >= self.request_flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """1 has tagged fields."""
        if self.key == API_VERSIONS:
            return 0  # KIP-511: a client that asks with a version we don't know must still be able to read the answer
        return 1 if version >= self.response_flexible_from else 0


#: Every API of the protocol, KRaft's too, by key.
API: dict[int, Api] = {key: Api(key, entry) for key, entry in INDEX.items()}

#: What a broker of ours can serve, once there are handlers for it.
SERVABLE: frozenset[int] = frozenset(API) - KRAFT_ONLY

_BY_NAME: dict[str, Api] = {api.name: api for api in API.values()}


def api_of(key: int) -> Api:
    """Raises `Malformed` for an unknown API: Kafka closes the connection, too."""
    api = API.get(key)
    if api is None:
        raise Malformed(f"unknown API key {key}")
    return api


def api_named(name: str) -> Api:
    """By Kafka's name: `api_named("Fetch")`. For tools and configuration; raises KeyError."""
    return _BY_NAME[name]


def advertise(handled: Iterable[int]) -> dict[int, VersionRange]:
    """What a broker with handlers for these keys says in ApiVersions, in the order of the keys."""
    keys = sorted(set(handled))
    foreign = [key for key in keys if key not in SERVABLE]
    if foreign:
        raise ValueError(f"not an API that a ZooKeeper-mode broker serves: {foreign}")
    return {key: VersionRange(API[key].min_version, API[key].max_version) for key in keys}
