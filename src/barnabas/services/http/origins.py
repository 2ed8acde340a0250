"""Is a request meant for this service, and does a page of another site send it? Pure.

A site that a user visits can make the browser ask any address, also one on loopback, and can give its own name the address of
the service (DNS rebinding). So a service that lets everybody in must be asked by a name of loopback, and no service answers
the pages of other origins. Programs that are no browsers send neither `Origin` nor `Sec-Fetch-Site`.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from barnabas.base.hosts import is_loopback
from barnabas.services.http.errors import Refusal


def check_host(headers: Mapping[str, str], names: Collection[str] = ()) -> None:
    """`names` are answered beside those of loopback. :raises Refusal: for any other name."""
    host = host_of(headers.get("host", ""))
    if not is_loopback(host) and host.lower() not in names:
        raise Refusal(421, "WRONG_HOST", "without sign-in this service answers to localhost, 127.0.0.1 and [::1] alone")


def check_origin(headers: Mapping[str, str]) -> None:
    """:raises Refusal: where a page of another origin asks."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_own = origin is None or _netloc(origin) == headers.get("host", "").lower() != ""
    if not is_own or site not in ("none", "same-origin"):
        raise Refusal(
            403, "WRONG_ORIGIN", "a page of another site asked for this, and the answer is not for other sites"
        )


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def host_of(header: str) -> str:
    """The name in a `Host` header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""
