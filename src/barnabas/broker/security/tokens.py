"""Delegation tokens (KIP-48): which principals may create, renew and expire one, and until when. Pure but for randomness.

A token's HMAC is its password. It is derived from its id and `delegation.token.secret.key`, so ZooKeeper holds no secret, and
every broker with the key knows every token's HMAC. Owner: the event loop.
"""

import base64
import hmac
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.security.principal import Principal
from barnabas.broker.zookeeper_client.znodes_security import DelegationTokenInfo
from barnabas.wire.auth.mechanisms.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism, TokenCredential

_SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """`delegation.token.max.lifetime.ms` and `delegation.token.expiry.time.ms`."""

    lifetime_ms_max: int
    renewal_ms: int


class DelegationTokens:
    """All tokens that this broker knows of."""

    def __init__(self, secret: str | None, limits: TokenLimits) -> None:
        self._secret = secret.encode() if secret else None
        self._limits = limits
        self._tokens: dict[str, DelegationTokenInfo] = {}
        self._ids_by_hmac: dict[bytes, str] = {}
        #: Created at first use: it costs milliseconds, and most tokens are used at one broker or none.
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    @property
    def is_enabled(self) -> bool:
        return self._secret is not None

    def __iter__(self) -> Iterator[DelegationTokenInfo]:
        return iter(self._tokens.values())

    def __len__(self) -> int:
        return len(self._tokens)

    def hmac_of(self, token_id: str) -> bytes:
        assert self._secret is not None
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    # -- changes in ZooKeeper -----------------------------------------------------------------------------------------

    def changed(self, info: DelegationTokenInfo) -> None:
        self._tokens[info.token_id] = info
        self._ids_by_hmac[self.hmac_of(info.token_id)] = info.token_id

    def removed(self, token_id: str) -> None:
        if self._tokens.pop(token_id, None) is not None:
            del self._ids_by_hmac[self.hmac_of(token_id)]
        for mechanism in ScramMechanism:
            self._credentials.pop((token_id, mechanism), None)

    # -- authentication -----------------------------------------------------------------------------------------------

    def credential(self, mechanism: ScramMechanism, token_id: str, *, now_ms: int) -> TokenCredential | None:
        """Return a token's credential; None for an unknown or expired token."""
        info = self._tokens.get(token_id)
        if info is None or self._secret is None or _has_expired(info, now_ms):
            return None
        key = (token_id, mechanism)
        credential = self._credentials.get(key)
        if credential is None:
            password = base64.b64encode(self.hmac_of(token_id)).decode()
            credential = self._credentials[key] = ScramCredential.of_password(
                mechanism, password, salt=os.urandom(_SALT_BYTES), iterations=ITERATIONS_MIN
            )
        return TokenCredential(info.owner.partition(":")[2], credential, info.expiry_timestamp_ms)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def create(
        self,
        *,
        token_id: str,
        owner: Principal,
        requester: Principal,
        renewers: tuple[Principal, ...],
        lifetime_ms: int,
        now_ms: int,
    ) -> DelegationTokenInfo:
        """Return the token to store. A `lifetime_ms` of 0 or less requests the longest lifetime."""
        self._require_enabled()
        limit_ms = self._limits.lifetime_ms_max
        max_ms = now_ms + (limit_ms if lifetime_ms <= 0 else min(lifetime_ms, limit_ms))
        return DelegationTokenInfo(
            token_id=token_id,
            owner=str(owner),
            requester=str(requester),
            renewers=tuple(str(each) for each in renewers),
            issue_timestamp_ms=now_ms,
            max_timestamp_ms=max_ms,
            expiry_timestamp_ms=min(max_ms, now_ms + self._limits.renewal_ms),
        )

    def renew(self, presented: bytes, principal: Principal, *, period_ms: int, now_ms: int) -> DelegationTokenInfo:
        """Return the token with its new end. A negative period requests the default one."""
        info = self._usable(presented, principal)
        if _has_expired(info, now_ms):
            raise Refused(ErrorCode.DELEGATION_TOKEN_EXPIRED, "Delegation Token is expired.")
        period_ms = self._limits.renewal_ms if period_ms < 0 else period_ms
        return replace(info, expiry_timestamp_ms=min(info.max_timestamp_ms, now_ms + period_ms))

    def expire(
        self, presented: bytes, principal: Principal, *, period_ms: int, now_ms: int
    ) -> tuple[DelegationTokenInfo, bool]:
        """Return (the token with its new end, whether it ends at once). A negative period ends it at once."""
        info = self._usable(presented, principal)
        if period_ms < 0:
            return replace(info, expiry_timestamp_ms=now_ms), True
        if _has_expired(info, now_ms):
            raise Refused(ErrorCode.DELEGATION_TOKEN_EXPIRED, "Delegation Token is expired.")
        return replace(info, expiry_timestamp_ms=min(info.max_timestamp_ms, now_ms + period_ms)), False

    def expired(self, *, now_ms: int) -> list[DelegationTokenInfo]:
        return [info for info in self._tokens.values() if _has_expired(info, now_ms)]

    def _require_enabled(self) -> None:
        if not self.is_enabled:
            raise Refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "Delegation Token feature is not enabled.")

    def _usable(self, presented: bytes, principal: Principal) -> DelegationTokenInfo:
        self._require_enabled()
        token_id = self._ids_by_hmac.get(presented)
        if token_id is None:
            raise Refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "Delegation Token is not found on server.")
        info = self._tokens[token_id]
        if str(principal) not in (info.owner, *info.renewers):
            raise Refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "Specified Principal is not valid Owner/Renewer.")
        return info


def concerns(info: DelegationTokenInfo, principal: Principal) -> bool:
    """Whether the principal owns, requested or may renew the token. It may then describe the token."""
    return str(principal) in (info.owner, info.requester, *info.renewers)


def _has_expired(info: DelegationTokenInfo, now_ms: int) -> bool:
    return info.max_timestamp_ms < now_ms or info.expiry_timestamp_ms < now_ms
