"""Checks that a request is meant for this service, and that no page of another site sends it. Pure.

A site that a user visits can make the browser send requests to any address, including loopback, and can point its own host name
to the address of the service (DNS rebinding). So a service without sign-in must be addressed by a loopback name, and no
service answers pages of other origins. Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from barnabas.base.hosts import host_of, is_loopback
from barnabas.services.http.errors import Refusal


def check_host(headers: Mapping[str, str], names: Collection[str] = ()) -> None:
    """`names` are accepted in addition to loopback names. :raises Refusal: for any other name."""
    host = host_of(headers.get("host", ""))
    if not is_loopback(host) and host.lower() not in names:
        raise Refusal(421, "WRONG_HOST", "without sign-in this service only answers to localhost, 127.0.0.1 and [::1]")


def check_origin(headers: Mapping[str, str]) -> None:
    """:raises Refusal: if a page of another origin sends the request."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_own = origin is None or _netloc(origin) == headers.get("host", "").lower() != ""
    if not is_own or site not in ("none", "same-origin"):
        raise Refusal(
            403, "WRONG_ORIGIN", "a page of another site sent this request, and this service only answers its own pages"
        )


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
