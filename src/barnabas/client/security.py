"""Authenticate the client and verify the broker, according to `security.protocol`, `ssl.*` and `sasl.*`."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.tls.contexts import TlsSettings, client_context
from barnabas.client import oauth_login as oauth_login  # registers OAUTHBEARER
from barnabas.client.errors import AuthenticationFailed, ClientError, ConnectionLost, OtherProtocol
from barnabas.client.exchange import Link
from barnabas.wire.auth.exchange import ClientExchange, SaslFailed
from barnabas.wire.auth.registry import Tokens, login_of
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

#: TLS alerts after which a retry is useless.
_REFUSING_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "PROTOCOL_VERSION")
#: The share of a session's lifetime after which it is renewed: the earliest that the Java client chooses.
RENEWAL_SHARE: Final = 0.85


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Built once from settings, used for every connection."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    begin: Callable[[], ClientExchange] | None = None
    #: The token source of a mechanism with tokens.
    tokens: Tokens | None = None

    @staticmethod
    def of(security_protocol: str, settings: Mapping[str, str]) -> "ClientSecurity":
        """:raises ConfigError: if the settings are wrong."""
        tls = None
        if security_protocol in ("SSL", "SASL_SSL"):
            tls = client_context(TlsSettings.read(settings.get))
        if security_protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
            return ClientSecurity(tls=tls)
        mechanism, login = login_of(settings)
        return ClientSecurity(tls=tls, mechanism=mechanism, begin=login.begin, tokens=login.tokens)

    def exchange(self, address: str) -> "SaslConversation | None":
        """Return the SASL conversation for a new connection; None without SASL. May wait for a token."""
        if self.begin is None or self.mechanism is None:
            return None
        return SaslConversation(address, self.mechanism, self.begin())


async def log_in(link: Link, conversation: "SaslConversation | None", timeout_ms: int) -> int:
    """Do the whole SASL exchange on a new link. Return the session's lifetime in ms; 0 if the broker does not limit it."""
    if conversation is None:
        return 0
    answer = await link.request(conversation.handshake, SaslHandshakeResponse, timeout_ms=timeout_ms)
    request: SaslAuthenticateRequest | None = conversation.begin(answer)
    lifetime_ms = 0
    while request is not None:
        response = await link.request(request, SaslAuthenticateResponse, timeout_ms=timeout_ms)
        lifetime_ms = response.session_lifetime_ms
        request = await link.compute(partial(conversation.proceed, response))
    return lifetime_ms


class SaslConversation:
    """Build the next SASL request and interpret the response, for any kind of connection. Pure."""

    def __init__(self, address: str, mechanism: str, exchange: ClientExchange) -> None:
        self._address = address
        self._mechanism = mechanism
        self._exchange = exchange

    @property
    def handshake(self) -> SaslHandshakeRequest:
        return SaslHandshakeRequest(mechanism=self._mechanism)

    def begin(self, response: SaslHandshakeResponse) -> SaslAuthenticateRequest:
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response.mechanisms) or "none"
            raise AuthenticationFailed(f"{self._address} does not offer {self._mechanism}: use {offered}")
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise AuthenticationFailed(f"{self._address} refused the SASL handshake: {code.name}")
        return SaslAuthenticateRequest(auth_bytes=self._exchange.first())

    def proceed(self, response: SaslAuthenticateResponse) -> SaslAuthenticateRequest | None:
        """Return the next request; None when both sides have finished."""
        if response.error_code:
            reason = response.error_message or ErrorCode(response.error_code).name
            raise AuthenticationFailed(f"{self._address}: {reason}")
        try:
            token = self._exchange.respond(bytes(response.auth_bytes))
        except SaslFailed as failure:
            raise AuthenticationFailed(f"{self._address}: {failure}") from failure
        return None if token is None else SaslAuthenticateRequest(auth_bytes=token)


def failed_handshake(address: str, error: OSError) -> ClientError:
    """Explain a failed TLS handshake: an untrusted certificate, or a port without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(f"the certificate of {address} is not trusted: {error.verify_message}")
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or reason in (None, "WRONG_VERSION_NUMBER"):
        return OtherProtocol(
            f"{address} does not answer in TLS. If it speaks plain text, set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    return ConnectionLost(f"cannot connect to {address}: TLS: {reason}")


def ended_at_once(address: str, error: ClientError) -> ClientError:
    """Explain a plaintext connection that ended at its first request: usually the port speaks TLS."""
    return OtherProtocol(
        f"{error} at the first request. If {address} speaks TLS, set security.protocol to SSL or SASL_SSL (the tools take it "
        "with --command-config)"
    )


def lost_connection(address: str, error: BaseException | None) -> ClientError:
    """Explain the end of a connection. With TLS 1.3 a broker refuses a client's certificate only after the handshake."""
    alert = (error.reason or "").partition("ALERT_")[2] if isinstance(error, ssl.SSLError) else ""
    if any(word in alert for word in _REFUSING_ALERTS):
        return AuthenticationFailed(f"{address} refuses this client in TLS: {alert.replace('_', ' ').lower()}")
    words = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ConnectionLost(f"connection to {address} was lost: {words or 'closed'}")
