"""A JDBC URL as the URI that PostgreSQL's own library takes. Pure."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

#: Parameters of PostgreSQL's JDBC driver, by their names in libpq.
_PARAMETERS: Final[Mapping[str, str]] = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "targetServerType": "target_session_attrs",
    "options": "options",
}
_SERVERS: Final = {
    "any": "any", "primary": "primary", "master": "primary", "secondary": "standby", "preferSecondary": "prefer-standby",
}  # fmt: skip
#: Parameters that change the driver and not what it reads or writes.
_NO_EFFECT: Final = (
    "reWriteBatchedInserts", "prepareThreshold", "defaultRowFetchSize", "tcpKeepAlive", "loginTimeout", "socketTimeout",
    "stringtype",
)  # fmt: skip


def postgresql_uri(jdbc: str, user: str | None, password: str | None) -> str:
    """:raises ValueError: if it is not a URL of PostgreSQL, or has a parameter that has no counterpart."""
    scheme, separator, rest = jdbc.partition("://")
    if not separator or scheme not in ("jdbc:postgresql", "postgresql"):
        raise ValueError(
            "only jdbc:postgresql://host:port/database can be used: there is no driver for other databases here"
        )
    place, _, query = rest.partition("?")
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        match name:
            case "ssl":
                parameters.setdefault("sslmode", "verify-full" if value in ("", "true") else "prefer")
            case "currentSchema":
                parameters["options"] = f"-csearch_path={value}"
            case "targetServerType" if value not in _SERVERS:
                raise ValueError(f"targetServerType={value} is not valid: use {', '.join(_SERVERS)}")
            case "targetServerType":
                parameters["target_session_attrs"] = _SERVERS[value]
            case _ if name in _PARAMETERS:
                parameters[_PARAMETERS[name]] = value
            case _ if name not in _NO_EFFECT:
                raise ValueError(f"the parameter {name} has no counterpart here: leave it out")
    if "@" in place.partition("/")[0]:
        raise ValueError("give the user by connection.user and not in the URL")
    if user is not None:
        parameters["user"] = user
    if password is not None:
        parameters["password"] = password
    return f"postgresql://{place}" + (f"?{urlencode(parameters, quote_via=quote)}" if parameters else "")
