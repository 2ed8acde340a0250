"""Delegation tokens: make, renew, end and list them. Any broker takes these requests."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.client.core import ClientCore
from barnabas.client.errors import check
from barnabas.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from barnabas.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from barnabas.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """Principals are written `User:alice`. The HMAC is the token's password: whoever shows a token shows a secret."""

    token_id: str
    hmac: bytes
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def hmac_base64(self) -> str:
        return base64.b64encode(self.hmac).decode()

    def __repr__(self) -> str:
        return f"DelegationToken({self.token_id}, owner={self.owner})"


def _split(principal: str) -> tuple[str, str]:
    kind, colon, name = principal.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"expected a string in format principalType:principalName but got {principal}")
    return kind, name


async def create_token(
    cluster: ClientCore, *, renewers: Sequence[str] = (), lifetime_ms: int = -1, owner: str | None = None
) -> DelegationToken:
    """:raises ValueError: for a principal that is not written `User:name`."""
    kind, name = _split(owner) if owner is not None else (None, None)
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in map(_split, renewers)],
        max_lifetime_ms=lifetime_ms,
    )
    response = await cluster.ask_any(request, CreateDelegationTokenResponse)
    check(response.error_code)
    return DelegationToken(
        token_id=response.token_id,
        hmac=bytes(response.hmac),
        owner=f"{response.principal_type}:{response.principal_name}",
        requester=f"{response.token_requester_principal_type}:{response.token_requester_principal_name}",
        renewers=tuple(renewers),
        issue_timestamp_ms=response.issue_timestamp_ms,
        expiry_timestamp_ms=response.expiry_timestamp_ms,
        max_timestamp_ms=response.max_timestamp_ms,
    )


async def renew_token(cluster: ClientCore, hmac: bytes, *, period_ms: int = -1) -> int:
    """When it ends now."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    response = await cluster.ask_any(request, RenewDelegationTokenResponse)
    check(response.error_code)
    return response.expiry_timestamp_ms


async def expire_token(cluster: ClientCore, hmac: bytes, *, period_ms: int = -1) -> int:
    """When it ends now; a negative period ends it at once."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    response = await cluster.ask_any(request, ExpireDelegationTokenResponse)
    check(response.error_code)
    return response.expiry_timestamp_ms


async def describe_tokens(cluster: ClientCore, owners: Sequence[str] | None = None) -> list[DelegationToken]:
    """Those of `owners`, or all that one may see."""
    wanted = None
    if owners is not None:
        wanted = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in map(_split, owners)
        ]
    response = await cluster.ask_any(DescribeDelegationTokenRequest(owners=wanted), DescribeDelegationTokenResponse)
    check(response.error_code)
    return [
        DelegationToken(
            token_id=each.token_id,
            hmac=bytes(each.hmac),
            owner=f"{each.principal_type}:{each.principal_name}",
            requester=f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
            renewers=tuple(f"{who.principal_type}:{who.principal_name}" for who in each.renewers),
            issue_timestamp_ms=each.issue_timestamp,
            expiry_timestamp_ms=each.expiry_timestamp,
            max_timestamp_ms=each.max_timestamp,
        )
        for each in response.tokens
    ]
