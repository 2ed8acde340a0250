"""Signing in: a client with the user's credentials connects to the cluster, which decides whether they are valid."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from barnabas.base.errors import ConfigError
from barnabas.base.hosts import is_loopback
from barnabas.base.tls.contexts import TlsSettings, client_context
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import AuthenticationFailed
from barnabas.client.registry import TOKEN, USER_INFO
from barnabas.client.security import ClientSecurity
from barnabas.services.console.errors import bad_request
from barnabas.services.console.settings import Settings
from barnabas.wire.auth.jaas import PLAIN_MODULE, SCRAM_MODULE
from barnabas.wire.auth.jwt import InvalidToken, Json, parse_jwt
from barnabas.wire.auth.mechanisms.oauthbearer import MECHANISM as OAUTHBEARER
from barnabas.wire.auth.mechanisms.oauthbearer import OAuthClient

_SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_PASSWORD_MECHANISMS: Final = (*_SCRAM, "PLAIN")
USER_CHARACTERS_MAX: Final = 256
SECRET_CHARACTERS_MAX: Final = 16_384
#: RFC 6750; no character of it can end the field of the SASL message that carries the token.
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")


def check_settings(settings: Settings) -> None:
    """:raises ConfigError: if the console would be open to other machines, or no user could sign in."""
    if settings.key is not None and settings.certificate is None:
        raise ConfigError("--ssl-key needs --ssl-certificate")
    _check_registry(settings)
    if not settings.needs_sign_in:
        return
    if settings.client.security_protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigError(
            "users sign in with credentials of the cluster, so the console needs a listener with SASL: set security.protocol "
            "to SASL_SSL or SASL_PLAINTEXT in --command-config, or leave --host at 127.0.0.1"
        )
    if not is_loopback(settings.host) and settings.certificate is None and not settings.behind_proxy:
        raise ConfigError(
            f"passwords would cross the network in the clear: give --ssl-certificate with --host {settings.host}, or "
            "--behind-proxy where a proxy in front of the console speaks HTTPS"
        )


def _check_registry(settings: Settings) -> None:
    for url in registry_urls(settings):
        if "@" in urlsplit(url).netloc:
            raise ConfigError(
                "other users of this machine can read the password in the address of the registry: put basic.auth.user.info "
                "into a file for --schema-registry-config, or set SCHEMA_REGISTRY_USER"
            )
    if settings.schema_registry is None and settings.schema_registry_config:
        raise ConfigError("--schema-registry-config needs --schema-registry")
    if settings.needs_sign_in and settings.schema_registry_config.keys() & {USER_INFO, TOKEN}:
        raise ConfigError(
            "if users sign in, the console asks the registry with their own credentials: start it without credentials of "
            "its own for the registry (--schema-registry-config, SCHEMA_REGISTRY_USER, SCHEMA_REGISTRY_TOKEN)"
        )


def registry_urls(settings: Settings) -> list[str]:
    return [each.strip() for each in (settings.schema_registry or "").split(",") if each.strip()]


def registry_config(settings: Settings, credentials: "Credentials | None") -> dict[str, str]:
    """Return the settings for asking the registry on behalf of a user; without a user, on behalf of the console itself.

    Passwords and tokens of users are only sent over HTTPS, or within this machine.
    """
    config = dict(settings.schema_registry_config)
    addresses = [urlsplit(url) for url in registry_urls(settings)]
    is_safe = all(each.scheme == "https" or is_loopback(each.hostname or "") for each in addresses)
    if credentials is not None and is_safe:
        if credentials.token:
            config[TOKEN] = credentials.token
        elif ":" not in credentials.user:  # HTTP Basic would read it as another user's name
            config[USER_INFO] = f"{credentials.user}:{credentials.password}"
    return config


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, or a token. Its representation hides the secrets."""

    user: str
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def secret(self) -> str:
        """Return one text for all parts, which differs between different credentials."""
        return f"{self.user}\0{self.password}\0{self.token}"

    @property
    def lifetime_s(self) -> float | None:
        """Return how long a token remains valid; None if unknown."""
        end = _claim(self.token, "exp") if self.token else None
        return max(0.0, float(end) - time.time()) if isinstance(end, int | float) else None


def credentials_of(user: Any, password: Any, token: Any) -> Credentials:
    """Return the credentials of a request: user and password, or a token. :raises Refusal: for anything else."""
    if not all(each is None or isinstance(each, str) for each in (user, password, token)):
        raise bad_request("user, password and token are text")
    if len(user or "") > USER_CHARACTERS_MAX or max(len(password or ""), len(token or "")) > SECRET_CHARACTERS_MAX:
        raise bad_request("that is too long for a user, a password or a token")
    if token:
        if not _TOKEN.fullmatch(token):
            raise bad_request("the token is not a bearer token")
        subject = _claim(token, "sub")
        # The brokers check the token. They may understand one that the console cannot read.
        name = subject[:USER_CHARACTERS_MAX] if isinstance(subject, str) and subject else "token"
        return Credentials(name, token=token)
    if not user or not password:
        raise bad_request("a user and a password are needed, or a token")
    return Credentials(user, password=password)


def _claim(token: str, name: str) -> Json | None:
    try:
        return parse_jwt(token).claims.get(name)
    except InvalidToken:
        return None


@dataclass(frozen=True, slots=True)
class Identity:
    """How a client authenticates. `security` is for what settings cannot express."""

    config: ClientConfig
    security: ClientSecurity | None = None


async def prove(config: ClientConfig, credentials: Credentials) -> Identity:
    """Return the identity that the cluster accepts. :raises AuthenticationFailed: if it accepts none."""
    failure: AuthenticationFailed | None = None
    for identity in _identities(config, credentials):
        async with AsyncClient(identity.config, security=identity.security) as cluster:
            try:
                await cluster.any_connection()
            except AuthenticationFailed as error:
                failure = error
            else:
                return identity
    assert failure is not None
    raise failure


def _identities(config: ClientConfig, credentials: Credentials) -> Iterator[Identity]:
    """Yield identities, the most likely mechanism first."""
    # Leave out the console's own credentials.
    shared = {name: value for name, value in config.security.items() if not name.startswith("sasl.")}
    bare = replace(config, properties={}, security=shared)
    if credentials.token:
        tls = client_context(TlsSettings.read(shared.get)) if config.security_protocol == "SASL_SSL" else None
        begin = lambda: OAuthClient(credentials.token, {})  # noqa: E731
        yield Identity(bare, ClientSecurity(tls=tls, mechanism=OAUTHBEARER, begin=begin))
        return
    said = config.security.get("sasl.mechanism", "")
    for mechanism in (said,) if said in _PASSWORD_MECHANISMS else _SCRAM:
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        user, password = (_quoted(each) for each in (credentials.user, credentials.password))
        login = {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{module} required username={user} password={password};",
        }
        yield Identity(replace(bare, security=shared | login))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
