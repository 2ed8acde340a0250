"""The sources of a client's OAUTHBEARER tokens: a token endpoint (KIP-768), a file, or unsigned tokens built locally.

A token is kept for a share of its lifetime (`sasl.login.refresh.window.factor`). After that, the next new connection or
session renewal fetches another one.
"""

import base64
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote_plus

from barnabas.base.backoff import Backoff
from barnabas.base.errors import ConfigError
from barnabas.base.tls.contexts import TlsSettings, client_context
from barnabas.client.errors import AuthenticationFailed
from barnabas.client.web import WebFailed, check_url, load, scheme_of
from barnabas.wire.auth.jaas import JaasEntry, parse_jaas
from barnabas.wire.auth.jwt import InvalidToken, Json, encode_unsecured, parse_jwt
from barnabas.wire.auth.mechanisms.oauthbearer import MECHANISM, OAuthClient, check_extensions
from barnabas.wire.auth.registry import Login, client_side

_UNSECURED: Final = "unsecuredLogin"
_EXTENSION: Final = "extension_"
TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_TRIES_MAX: Final = 4


class TokenSource:
    """Thread-safe. `get` may block on the web or a file."""

    def __init__(
        self,
        fetch: Callable[[], str],
        extensions: Mapping[str, str],
        *,
        refresh_share: float = 0.8,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch
        self._extensions = dict(extensions)
        self._refresh_share = refresh_share
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token: str | None = None
        self._refresh_at_s = 0.0

    @property
    def is_fresh(self) -> bool:
        return self._token is not None and self._now_s() < self._refresh_at_s

    def get(self) -> str:
        """:raises AuthenticationFailed: if no token can be fetched."""
        with self._lock:
            if not self.is_fresh:
                token, now_s = self._fetch(), self._now_s()
                self._refresh_at_s = now_s + max(0.0, _end_s(token) - now_s) * self._refresh_share
                self._token = token
            assert self._token is not None
            return self._token

    def exchange(self) -> OAuthClient:
        return OAuthClient(self.get(), self._extensions)


def _end_s(token: str) -> float:
    try:
        end = parse_jwt(token).claims.get("exp")
    except InvalidToken:
        return 0.0  # an opaque token is used once; the broker may be able to check it
    return float(end) if isinstance(end, int | float) else 0.0


@client_side(
    MECHANISM,
    settings=(
        TOKEN_ENDPOINT,
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.login.retry.backoff.max.ms",
    ),
)
def _client(settings: Mapping[str, str]) -> Login:
    tokens = token_source(settings)
    return Login(tokens.exchange, tokens)


def token_source(settings: Mapping[str, str]) -> TokenSource:
    """:raises ConfigError: if no token can come from these settings."""
    text = settings.get("sasl.jaas.config")
    if text is None:
        raise ConfigError(f"sasl.mechanism=OAUTHBEARER needs sasl.jaas.config, and {TOKEN_ENDPOINT} for signed tokens")
    entry = parse_jaas(text)
    share = _share(settings)
    url = settings.get("sasl.oauthbearer.token.endpoint.url")
    if url is not None:
        check_url(TOKEN_ENDPOINT, url)
        extensions = _prefixed(entry, _EXTENSION)
        check_extensions(extensions)
        fetch = _from_file(url) if scheme_of(url) == "file" else _from_endpoint(url, entry, settings)
        return TokenSource(fetch, extensions, refresh_share=share)
    if not any(name.startswith(_UNSECURED) for name in entry.options):
        raise ConfigError(
            f"sasl.mechanism=OAUTHBEARER: set {TOKEN_ENDPOINT}, or, for unsigned tokens, "
            "unsecuredLoginStringClaim_sub in sasl.jaas.config"
        )
    extensions = _prefixed(entry, f"{_UNSECURED}Extension_")
    check_extensions(extensions)
    claims_of = _unsecured(entry)
    return TokenSource(lambda: encode_unsecured(claims_of(time.time())), extensions, refresh_share=share)


def _share(settings: Mapping[str, str]) -> float:
    try:
        factor = float(settings.get("sasl.login.refresh.window.factor") or 0.8)
        jitter = float(settings.get("sasl.login.refresh.window.jitter") or 0.05)
    except ValueError:
        raise ConfigError("sasl.login.refresh.window.factor and .jitter are numbers between 0 and 1") from None
    return min(1.0, factor + random.uniform(0, jitter))


def _prefixed(entry: JaasEntry, prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in entry.options.items() if name.startswith(prefix)}


def _from_file(url: str) -> Callable[[], str]:
    def fetch() -> str:
        try:
            return load(url).decode().strip()
        except (WebFailed, UnicodeDecodeError) as error:
            raise AuthenticationFailed(f"no token: {error}") from error

    return fetch


def _from_endpoint(url: str, entry: JaasEntry, settings: Mapping[str, str]) -> Callable[[], str]:
    identity = f"{entry.require('clientId')}:{entry.require('clientSecret')}"
    scope = entry.options.get("scope", "").strip()
    body = "grant_type=client_credentials" + (f"&scope={quote_plus(scope)}" if scope else "")
    headers = {
        "Authorization": "Basic " + base64.b64encode(identity.encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
        "Cache-Control": "no-cache",
    }
    timeout_ms = _milliseconds(settings, "sasl.login.read.timeout.ms", "sasl.login.connect.timeout.ms")
    backoff_ms = _milliseconds(settings, "sasl.login.retry.backoff.ms") or 100
    backoff_max_ms = _milliseconds(settings, "sasl.login.retry.backoff.max.ms") or 10_000
    # Kafka's Java client reads the trust store from the JAAS line here; so does this client.
    own = {name: value for name, value in entry.options.items() if name.startswith("ssl.")}
    tls = client_context(TlsSettings.read(own.get)) if own else None

    def fetch() -> str:
        backoff = Backoff(backoff_ms / 1000, backoff_max_ms / 1000)
        for attempt in range(1, _TRIES_MAX + 1):
            try:
                return _access_token(
                    url, load(url, body=body.encode(), headers=headers, timeout_ms=timeout_ms, tls=tls)
                )
            except WebFailed as failure:
                if failure.is_final or attempt == _TRIES_MAX:
                    raise AuthenticationFailed(f"no token: {failure}") from failure
            time.sleep(backoff.failed())
        raise AssertionError("unreachable: the last try returns or raises")

    return fetch


def _access_token(url: str, document: bytes) -> str:
    try:
        token = json.loads(document)["access_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        token = None
    if not isinstance(token, str) or not token.strip():
        # No chained error and no part of the document: it may hold a token under another name.
        raise AuthenticationFailed(f"no token: the answer of {url} has no access_token") from None
    return token.strip()


def _milliseconds(settings: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if text := settings.get(name):
            if not text.strip().isdigit():
                raise ConfigError(f"{name}={text} is not a number of milliseconds")
            return int(text)
    return None


def _unsecured(entry: JaasEntry) -> Callable[[float], dict[str, Json]]:
    """Build unsigned tokens from the JAAS options `unsecuredLogin…`, as Kafka does."""
    options = entry.options
    lifetime = options.get(f"{_UNSECURED}LifetimeSeconds", "3600")
    principal_claim = options.get(f"{_UNSECURED}PrincipalClaimName", "sub")
    try:
        lifetime_s = float(lifetime)
        numbers = {name: float(text) for name, text in _prefixed(entry, f"{_UNSECURED}NumberClaim_").items()}
    except ValueError:
        raise ConfigError(f"sasl.jaas.config: {_UNSECURED}LifetimeSeconds and NumberClaims are numbers") from None
    claims: dict[str, Json] = {**numbers, **_prefixed(entry, f"{_UNSECURED}StringClaim_")}
    for name, text in _prefixed(entry, f"{_UNSECURED}ListClaim_").items():
        # As in Kafka: the first character separates the entries.
        claims[name] = list(text[1:].split(text[:1])) if text else []
    if not claims.get(principal_claim):
        raise ConfigError(f'sasl.jaas.config: unsecured tokens need {_UNSECURED}StringClaim_{principal_claim}="…"')
    return lambda now_s: {**claims, "iat": now_s, "exp": now_s + lifetime_s}
