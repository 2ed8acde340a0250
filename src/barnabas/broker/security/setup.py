"""Creates the authorizer and the delegation tokens from a broker's settings."""

from typing import Final

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ConfigError
from barnabas.broker.security.acl import AclAuthorizer
from barnabas.broker.security.authorizer import AllowEverything, Authorizer
from barnabas.broker.security.tokens import DelegationTokens, TokenLimits

ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"


def make_authorizer(config: BrokerConfig) -> Authorizer:
    name = config.authorizer_class_name.strip()
    if not name:
        return AllowEverything()
    if name != ACL_AUTHORIZER:
        raise ConfigError(
            f"authorizer.class.name={name} is not known: leave it empty, or use {ACL_AUTHORIZER}, "
            "which keeps its entries in ZooKeeper"
        )
    return AclAuthorizer(super_users=config.super_users, allow_if_no_acl=config.allow_everyone_if_no_acl_found)


def make_tokens(config: BrokerConfig) -> DelegationTokens:
    """Return the tokens; disabled without `delegation.token.secret.key`."""
    secret = config.delegation_token_secret_key
    return DelegationTokens(
        secret.value if secret is not None else None,
        TokenLimits(
            lifetime_ms_max=config.delegation_token_max_lifetime_ms, renewal_ms=config.delegation_token_expiry_time_ms
        ),
    )
