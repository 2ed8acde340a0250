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
    """Principals are written `User:alice`. The HMAC is the token's password, so `repr` leaves it out."""

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
    """Renew a token; return when it now expires."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    response = await cluster.ask_any(request, RenewDelegationTokenResponse)
    check(response.error_code)
    return response.expiry_timestamp_ms


async def expire_token(cluster: ClientCore, hmac: bytes, *, period_ms: int = -1) -> int:
    """Set when a token expires and return that time; with a negative period it expires now."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    response = await cluster.ask_any(request, ExpireDelegationTokenResponse)
    check(response.error_code)
    return response.expiry_timestamp_ms


async def describe_tokens(cluster: ClientCore, owners: Sequence[str] | None = None) -> list[DelegationToken]:
    """Return the tokens of `owners`, or all that this user may see."""
    wanted = None
    if owners is not None:
        wanted = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in map(_split, owners)
        ]
    response = await cluster.ask_any(DescribeDelegationTokenRequest(owners=wanted), DescribeDelegationTokenResponse)
    check(response.error_code)
    return [
        DelegationToken(
            token_id=token.token_id,
            hmac=bytes(token.hmac),
            owner=f"{token.principal_type}:{token.principal_name}",
            requester=f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
            renewers=tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in token.renewers),
            issue_timestamp_ms=token.issue_timestamp,
            expiry_timestamp_ms=token.expiry_timestamp,
            max_timestamp_ms=token.max_timestamp,
        )
        for token in response.tokens
    ]
