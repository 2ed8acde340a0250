"""The APIs and versions that barnabas's brokers can serve, by API key. Imports no message class.

`API`, from the generated index, is what the protocol has; `advertise` returns what a given broker offers: the keys with
registered handlers. Request and response classes are imported at first use, one module per API.

The served versions are those of Kafka 4, which Kafka 3.9 also uses with its own brokers and clients, with two exceptions.
Produce is advertised from version 0, because librdkafka does not compress for a broker without it (KAFKA-18659; Kafka 4 does
the same), but the handler refuses requests below version 3. And the four requests by which a ZooKeeper-mode controller
controls its brokers have the versions of 3.9.
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

#: APIs for the controller and brokers only; clients do not use them.
INTER_BROKER = frozenset({LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN})

#: KRaft APIs: quorum, registration with a KRaft controller, forwarding. A ZooKeeper-mode broker serves none of them.
KRAFT_ONLY = frozenset({52, 53, 54, 55, 58, 59, 62, 63, 64, 70, 73, 80, 81, 82})


class VersionRange(NamedTuple):
    min_version: int
    max_version: int


class Api:
    """One API with the served versions `min_version` to `max_version`. Produce is advertised from 0, but its classes begin at
    3."""

    def __init__(self, key: int, entry: IndexEntry) -> None:
        self.key = key
        self.name = entry.name
        # librdkafka needs Produce from 0: see the module's docstring.
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
        """Return 0 for a header without client id, 1 with it, 2 with tagged fields, too."""
        if self.key == CONTROLLED_SHUTDOWN and version == 0:
            return 0  # it is older than client ids
        return 2 if version >= self.request_flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """Return 1 for a header with tagged fields, else 0."""
        if self.key == API_VERSIONS:
            return 0  # KIP-511: a client that uses a newer version must still be able to read the response
        return 1 if version >= self.response_flexible_from else 0


#: Every API of the protocol by key, including KRaft's.
API: dict[int, Api] = {key: Api(key, entry) for key, entry in INDEX.items()}

#: The APIs that a broker can serve if it has handlers for them.
SERVABLE: frozenset[int] = frozenset(API) - KRAFT_ONLY

_BY_NAME: dict[str, Api] = {api.name: api for api in API.values()}


def api_of(key: int) -> Api:
    """Raise `Malformed` for an unknown API. Kafka also closes the connection."""
    api = API.get(key)
    if api is None:
        raise Malformed(f"unknown API key {key}")
    return api


def api_named(name: str) -> Api:
    """Look up by Kafka's name: `api_named("Fetch")`. For tools and configuration; raises KeyError."""
    return _BY_NAME[name]


def advertise(handled: Iterable[int]) -> dict[int, VersionRange]:
    """Return what a broker with handlers for these keys reports in ApiVersions, in the order of the keys."""
    keys = sorted(set(handled))
    foreign = [key for key in keys if key not in SERVABLE]
    if foreign:
        raise ValueError(f"not an API that a ZooKeeper-mode broker serves: {foreign}")
    return {key: VersionRange(API[key].min_version, API[key].max_version) for key in keys}
