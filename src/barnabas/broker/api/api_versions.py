"""ApiVersions, v0 to v5: the APIs that this broker serves (KIP-35, KIP-511), and its features (KIP-584).

From v5 on a client may name the broker that it means to connect to. If it is connected to another one, for example through an
address that belongs to another cluster by now, the answer is REBOOTSTRAP_REQUIRED (KIP-1242).

The answer to an unknown version is v0 with UNSUPPORTED_VERSION and the list, so that the client can fall back.
"""

import re
from collections.abc import Callable

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId
from barnabas.broker.server.call import Call
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.zookeeper_client.features import ANNOUNCED, ClusterFeatures
from barnabas.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.versions import VersionRange

#: Sent with no cluster id.
NO_NODE = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def refuse(request: ApiVersionsRequest | None, code: ErrorCode, message: str | None) -> ApiMessage:
    return ApiVersionsResponse(error_code=code)


class ApiVersionsApi:
    def __init__(
        self,
        advertised: Callable[[], dict[int, VersionRange]],
        features: ClusterFeatures,
        *,
        cluster_id: str,
        broker_id: BrokerId,
    ) -> None:
        self._advertised = advertised
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._features = features

    @serves("ApiVersions", refuse)
    def handle(self, call: Call, request: ApiVersionsRequest | None) -> HandlerResult:
        if request is None:
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._keys())
        if call.api_version >= 3:
            software = (request.client_software_name, request.client_software_version)
            if not all(map(_SOFTWARE.fullmatch, software)):
                raise Refused(ErrorCode.INVALID_REQUEST, "client software name and version must be plain words")
            call.channel.software = software
        if call.api_version >= 5:
            self._require_destination(request)
        return ApiVersionsResponse(
            api_keys=self._keys(),
            supported_features=[
                SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in ANNOUNCED.items()
                # A client before v4 rejects a lowest version of 0 (KAFKA-17011).
                if low > 0 or call.api_version >= 4
            ],
            finalized_features_epoch=self._features.epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in self._features.levels.items()
            ],
        )

    def _require_destination(self, request: ApiVersionsRequest) -> None:
        if request.cluster_id is None:
            if request.node_id != NO_NODE:
                raise Refused(ErrorCode.INVALID_REQUEST, "a node id is valid only with a cluster id")
            return
        if (request.cluster_id, request.node_id) != (self._cluster_id, self._broker_id):
            raise Refused(
                ErrorCode.REBOOTSTRAP_REQUIRED,
                f"this is broker {self._broker_id} of cluster {self._cluster_id}, not the one that the client looks for",
            )

    def _keys(self) -> list[ApiVersion]:
        return [
            ApiVersion(api_key=key, min_version=served.min_version, max_version=served.max_version)
            for key, served in self._advertised().items()
        ]
