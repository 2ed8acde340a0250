"""One format for all errors: a sentence, and a name that scripts can compare (Kafka's name for Kafka's errors)."""

from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.client.errors import (
    AuthenticationFailed,
    BrokerRefused,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    RequestTimedOut,
    UnsupportedVersion,
)
from barnabas.services.http.errors import Refusal as Refusal
from barnabas.services.http.errors import bad_request as bad_request

_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
}


def not_found(message: str) -> Refusal:
    return Refusal(404, "NOT_FOUND", message)


def refusal_of(error: ClientError) -> Refusal:
    """Translate an error of the cluster, or of the connection to it."""
    if isinstance(error, BrokerRefused):
        message = error.message or error.code.name.lower().replace("_", " ")
        return Refusal(_STATUS.get(error.code, 502 if error.retriable else 400), error.code.name, message)
    if isinstance(error, AuthenticationFailed):
        return Refusal(401, "SASL_AUTHENTICATION_FAILED", str(error))
    if isinstance(error, UnsupportedVersion):
        return Refusal(501, ErrorCode.UNSUPPORTED_VERSION.name, str(error))
    if isinstance(error, RequestTimedOut | DeadlineExceeded):
        return Refusal(504, ErrorCode.REQUEST_TIMED_OUT.name, str(error))
    if isinstance(error, ConnectionLost):
        return Refusal(502, ErrorCode.NETWORK_EXCEPTION.name, str(error))
    return Refusal(502, ErrorCode.UNKNOWN_SERVER_ERROR.name, str(error))
