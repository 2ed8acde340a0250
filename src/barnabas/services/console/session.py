"""`/api/session`: the current user, signing in and out, and the token that changes need."""

from typing import Any

from starlette.responses import Response

from barnabas.services.console.guard import Account
from barnabas.services.console.sessions import Session
from barnabas.services.console.sign_in import credentials_of
from barnabas.services.console.web import TEXT, Call, Endpoint, json_response


async def show(call: Call) -> dict[str, Any]:
    assert call.request is not None
    return _document(call, call.services.guard.session_of(call.request))


async def begin(call: Call) -> Response:
    assert call.request is not None
    guard, settings = call.services.guard, call.services.settings
    if not settings.needs_sign_in:
        return json_response(_document(call, None))
    credentials = credentials_of(*(call.body.get(name) for name in ("user", "password", "token")))
    former = guard.session_of(call.request)
    session = await guard.sign_in(credentials, guard.address_of(call.request))
    if former is not None:
        guard.sign_out(former)
    response = json_response(_document(call, session))
    response.set_cookie(
        guard.cookie_name,
        guard.sessions.cookie_of(session),
        httponly=True,
        samesite="strict",
        secure=settings.is_https,
    )
    return response


async def end(call: Call) -> Response:
    assert call.request is not None
    guard, settings = call.services.guard, call.services.settings
    session = guard.session_of(call.request)
    if session is not None:
        guard.sign_out(session)
    response = json_response(_document(call, None))
    response.delete_cookie(
        guard.cookie_name,
        httponly=True,
        samesite="strict",
        secure=settings.is_https,
    )
    return response


def _document(call: Call, session: Session[Account] | None) -> dict[str, Any]:
    settings = call.services.settings
    return {
        "signIn": settings.needs_sign_in,
        "user": session.user if session is not None else call.user.name or None,
        "readWrite": settings.read_write,
        "csrfToken": call.services.guard.csrf_token(session),
    }


ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/session",
        handler=show,
        summary="Whether sign-in is required, the current user, and the token that changes need in the header X-CSRF-Token.",
        is_open=True,
    ),
    Endpoint(
        method="POST",
        path="/session",
        handler=begin,
        summary="Sign in with a user of the cluster (SCRAM or PLAIN) or a token (OAUTHBEARER). Sets a cookie.",
        body={"type": "object", "properties": {"user": TEXT, "password": TEXT, "token": TEXT}},
        is_open=True,
    ),
    Endpoint(method="DELETE", path="/session", handler=end, summary="Sign out.", is_open=True),
]
