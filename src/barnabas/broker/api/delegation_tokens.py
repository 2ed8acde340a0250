"""Delegation tokens (KIP-48, KIP-373): Create v1 to v3, Renew v1 to v2, Expire v1 to v2, Describe v1 to v3.

Any broker accepts them, as in Kafka's ZooKeeper mode. Refused on connections that were themselves opened with a token, and on
unauthenticated connections.
"""

from collections.abc import Callable
from typing import cast

from barnabas.base.chance import random_uuid
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import format_uuid
from barnabas.base.words import AclOperation, AclResourceType, SecurityProtocol
from barnabas.broker.api.sasl import SaslGate
from barnabas.broker.security.principal import ANONYMOUS, Principal
from barnabas.broker.security.token_store import TokenStore
from barnabas.broker.security.tokens import DelegationTokens, concerns
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.zookeeper_client.znodes_security import DelegationTokenInfo
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from barnabas.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from barnabas.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse

_NO_TIME = -1


class TokensApi:
    def __init__(
        self,
        context: BrokerContext,
        tokens: DelegationTokens,
        store: TokenStore | None,
        new_id: Callable[[], str] = lambda: format_uuid(random_uuid()),
    ) -> None:
        """`store` is None if tokens are off."""
        self._context = context
        self._tokens = tokens
        self._store = store
        self._new_id = new_id

    @serves(
        "CreateDelegationToken",
        refusal(issue_timestamp_ms=_NO_TIME, expiry_timestamp_ms=_NO_TIME, max_timestamp_ms=_NO_TIME),
    )
    async def create(self, call: Call, request: CreateDelegationTokenRequest) -> ApiMessage:
        requester = call.channel.principal
        owner = requester
        if request.owner_principal_name:
            owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
        response = CreateDelegationTokenResponse(
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=requester.kind,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=_NO_TIME,
            expiry_timestamp_ms=_NO_TIME,
            max_timestamp_ms=_NO_TIME,
        )
        try:
            self._require_identity(call)
            if owner != requester and not self._context.allows(
                call, AclOperation.CREATE_TOKENS, AclResourceType.USER, str(owner)
            ):
                raise Refused(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
            renewers = tuple(Principal(each.principal_type, each.principal_name) for each in request.renewers)
            if any(each.kind != "User" for each in renewers):
                raise Refused(ErrorCode.INVALID_PRINCIPAL_TYPE)
            info = self._tokens.create(
                token_id=self._new_id(),
                owner=owner,
                requester=requester,
                renewers=renewers,
                lifetime_ms=request.max_lifetime_ms,
                now_ms=self._context.clock.now_ms(),
            )
        except Refused as refusal:
            response.error_code = refusal.code
            return response
        await self._write(info)
        response.issue_timestamp_ms = info.issue_timestamp_ms
        response.expiry_timestamp_ms = info.expiry_timestamp_ms
        response.max_timestamp_ms = info.max_timestamp_ms
        response.token_id = info.token_id
        response.hmac = self._tokens.hmac_of(info.token_id)
        return response

    @serves("RenewDelegationToken", refusal(expiry_timestamp_ms=_NO_TIME))
    async def renew(self, call: Call, request: RenewDelegationTokenRequest) -> ApiMessage:
        self._require_identity(call)
        info = self._tokens.renew(
            bytes(request.hmac),
            call.channel.principal,
            period_ms=request.renew_period_ms,
            now_ms=self._context.clock.now_ms(),
        )
        await self._write(info)
        return RenewDelegationTokenResponse(expiry_timestamp_ms=info.expiry_timestamp_ms)

    @serves("ExpireDelegationToken", refusal(expiry_timestamp_ms=_NO_TIME))
    async def expire(self, call: Call, request: ExpireDelegationTokenRequest) -> ApiMessage:
        self._require_identity(call)
        info, at_once = self._tokens.expire(
            bytes(request.hmac),
            call.channel.principal,
            period_ms=request.expiry_time_period_ms,
            now_ms=self._context.clock.now_ms(),
        )
        if at_once:
            assert self._store is not None
            await self._store.remove(info.token_id)
        else:
            await self._write(info)
        return ExpireDelegationTokenResponse(expiry_timestamp_ms=info.expiry_timestamp_ms)

    @serves("DescribeDelegationToken", refusal())
    def describe(self, call: Call, request: DescribeDelegationTokenRequest) -> ApiMessage:
        self._require_identity(call)
        if not self._tokens.is_enabled:
            raise Refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        owners = None
        if request.owners is not None:
            owners = [Principal(each.principal_type, each.principal_name) for each in request.owners]
        shown = [info for info in self._tokens if self._may_see(call, info, owners)]
        return DescribeDelegationTokenResponse(tokens=[self._described(info) for info in shown])

    def _may_see(self, call: Call, info: DelegationTokenInfo, owners: list[Principal] | None) -> bool:
        if owners is not None and not any(concerns(info, owner) for owner in owners):
            return False
        allows = self._context.allows
        return (
            concerns(info, call.channel.principal)
            or allows(call, AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, info.token_id)
            or allows(call, AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, info.owner)
        )

    def _described(self, info: DelegationTokenInfo) -> DescribedDelegationToken:
        owner, requester = _principal(info.owner), _principal(info.requester)
        return DescribedDelegationToken(
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=requester.kind,
            token_requester_principal_name=requester.name,
            issue_timestamp=info.issue_timestamp_ms,
            expiry_timestamp=info.expiry_timestamp_ms,
            max_timestamp=info.max_timestamp_ms,
            token_id=info.token_id,
            hmac=self._tokens.hmac_of(info.token_id),
            renewers=[
                DescribedDelegationTokenRenewer(principal_type=each.kind, principal_name=each.name)
                for each in map(_principal, info.renewers)
            ],
        )

    async def _write(self, info: DelegationTokenInfo) -> None:
        assert self._store is not None  # `DelegationTokens` has accepted the change, so tokens are on
        await self._store.write(info)

    def _require_identity(self, call: Call) -> None:
        channel = call.channel
        protocol = self._context.config.listener_security_protocol_map[channel.listener_name]
        gate = channel.gate
        if (
            protocol is SecurityProtocol.PLAINTEXT
            or (protocol is SecurityProtocol.SSL and channel.principal == ANONYMOUS)
            or (gate is not None and cast(SaslGate, gate).session.by_delegation_token)
        ):
            raise Refused(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _principal(text: str) -> Principal:
    kind, _, name = text.partition(":")
    return Principal(kind, name)
