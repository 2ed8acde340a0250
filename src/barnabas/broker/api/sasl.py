"""The SASL APIs: SaslHandshake v0 to v1 and SaslAuthenticate v0 to v2 (KIP-43, KIP-152), re-authentication (KIP-368).

On a listener with SASL a `SaslGate` stands before all handlers of a connection; on any other listener both APIs answer
ILLEGAL_SASL_STATE, as in Kafka. After a handshake of version 0, tokens are sent without headers, as by old clients.
After `connection.failed.authentication.delay.ms` a failure is answered, and the connection closed.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import cast

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode, Malformed
from barnabas.broker.security.principal import Principal
from barnabas.broker.server.call import Call
from barnabas.broker.server.handler import ApiHandler, HandlerResult, serves
from barnabas.broker.server.ranges import Part
from barnabas.broker.server.refusal import refusal
from barnabas.wire.auth.exchange import SaslFailed
from barnabas.wire.auth.login_pace import LoginPace
from barnabas.wire.auth.machine import IllegalState, NotAdmitted, RequestKind, SaslSession
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from barnabas.wire.versions import api_named

log = logging.getLogger(__name__)

_KINDS = {
    api_named("ApiVersions").key: RequestKind.VERSIONS,
    api_named("SaslHandshake").key: RequestKind.HANDSHAKE,
    api_named("SaslAuthenticate").key: RequestKind.AUTHENTICATE,
}


class SaslGate:
    """The gate of one connection. Owner: the event loop."""

    def __init__(self, session: SaslSession, api: "SaslApi", *, frame_bytes_max: int) -> None:
        self.session = session
        self.frame_bytes_max = frame_bytes_max
        self._api = api

    @property
    def is_open(self) -> bool:
        return self.session.is_complete

    @property
    def raw(self) -> ApiHandler | None:
        return self._api.raw if self.session.takes_raw_tokens else None

    def admit(self, api_key: int) -> None:
        try:
            self.session.admit(_KINDS.get(api_key, RequestKind.OTHER), now_ms=self._api.now_ms())
        except NotAdmitted as error:
            raise Malformed(f"{error} (API key {api_key})") from error


_refuse_authenticate = refusal().of(api_named("SaslAuthenticate"))


class SaslApi:
    """The handlers of all connections; each connection's state is in its gate."""

    def __init__(self, clock: Clock, *, failure_delay_ms: int) -> None:
        self._clock = clock
        self._failure_delay_ms = failure_delay_ms
        self._throttle = LoginPace()
        self.raw: ApiHandler = _RawTokens(api_named("SaslAuthenticate"), self.authenticate, _refuse_authenticate)

    def now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    @serves("SaslHandshake", refusal())
    def handshake(self, call: Call, request: SaslHandshakeRequest) -> HandlerResult:
        session = _session_of(call)
        if session is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        try:
            session.handshake(request.mechanism, with_headers=call.api_version >= 1, now_ms=self.now_ms())
        except IllegalState:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        except SaslFailed as failure:
            response = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=session.mechanisms
            )
            self._fail(call, response, failure)
            return None
        return SaslHandshakeResponse(mechanisms=session.mechanisms)

    @serves("SaslAuthenticate", _refuse_authenticate)
    def authenticate(self, call: Call, request: SaslAuthenticateRequest) -> HandlerResult:
        session = _session_of(call)
        if session is None:
            return _illegal()
        if not session.is_complete:
            wait_ms = self._throttle.wait_ms(call.channel.peer_host, self.now_ms())
            if wait_ms is None:
                raise Malformed("too many failed logins from this address")
            if wait_ms:
                evaluate = partial(self._authenticate_later, call, session, request)
                timer = asyncio.get_running_loop().call_later(wait_ms / 1000, evaluate)
                call.on_abandoned = partial(self._abandoned, call, timer)
                return None
        return self._authenticate(call, session, request)

    def _abandoned(self, call: Call, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._throttle.waited(call.channel.peer_host)

    def _authenticate_later(self, call: Call, session: SaslSession, request: SaslAuthenticateRequest) -> None:
        self._throttle.waited(call.channel.peer_host)
        call.on_abandoned = None
        response = self._authenticate(call, session, request)
        if response is not None:
            call.reply(response)

    def _authenticate(self, call: Call, session: SaslSession, request: SaslAuthenticateRequest) -> ApiMessage | None:
        try:
            accepted = session.authenticate(
                bytes(request.auth_bytes), now_ms=self.now_ms(), wall_ms=self._clock.now_ms()
            )
        except IllegalState:
            return _illegal()
        except SaslFailed as failure:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(failure)
            )
            self._fail(call, response, failure)
            return None
        if accepted.user is not None:
            call.channel.authenticated(Principal("User", accepted.user))
        return SaslAuthenticateResponse(
            error_message=None, auth_bytes=accepted.token, session_lifetime_ms=accepted.session_lifetime_ms
        )

    def _fail(self, call: Call, response: ApiMessage, failure: SaslFailed) -> None:
        """Answer a failed login after a delay: a client that guesses passwords has to wait for each answer."""
        self._throttle.failed(call.channel.peer_host, self.now_ms())
        log.info(
            "[listener %s] authentication from %s failed: %s",
            call.channel.listener_name,
            call.channel.peer_host,
            failure,
        )
        timer = asyncio.get_running_loop().call_later(self._failure_delay_ms / 1000, _answer_and_close, call, response)
        call.on_abandoned = timer.cancel


def _illegal() -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


def _answer_and_close(call: Call, response: ApiMessage) -> None:
    call.channel.finish()
    call.reply(response)


def _session_of(call: Call) -> SaslSession | None:
    gate = call.channel.gate
    return cast(SaslGate, gate).session if gate is not None else None


class _RawTokens(ApiHandler):
    """Tokens without headers: the frame is the token, and so is the answer. A refusal closes the connection."""

    def encode(self, call: Call, response: ApiMessage) -> Sequence[Part]:
        assert isinstance(response, SaslAuthenticateResponse)
        if response.error_code:
            return ()
        token = bytes(response.auth_bytes)
        return (len(token).to_bytes(4, "big") + token,)
