"""Responses to refused requests, of every API in every version, are the same bytes as those in a golden file.

`pytest --update-stories` adds the responses of new APIs and versions; it never changes those that are there.
"""

import hashlib
import importlib
import json
import pkgutil
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.broker import api
from barnabas.broker.server.handler import ApiHandler, handlers_of
from barnabas.broker.server.refusal import refusal
from barnabas.wire.codec import encode
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.versions import api_named
from tests.unit.wire.messages.message_samples import random_message

GOLDEN_FILE = Path(__file__).parents[3] / "golden/refusals.json"
GOLDEN: dict[str, str] = json.loads(GOLDEN_FILE.read_text())
ERRORS = (
    (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None),
    (ErrorCode.INVALID_REQUEST, "no"),
    (ErrorCode.UNKNOWN_SERVER_ERROR, "x"),
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None),
)


def handlers() -> Iterator[ApiHandler]:
    """Yield the handlers of all families, without a broker: the class of a family defines its APIs and refusals."""
    modules = [f"{api.__name__}.{module.name}" for module in pkgutil.iter_modules(api.__path__)]
    for name in (*modules, "barnabas.broker.features.link.api"):
        for kind in vars(importlib.import_module(name)).values():
            if isinstance(kind, type) and kind.__name__.endswith("Api"):
                yield from handlers_of(object.__new__(kind))


HANDLERS = {handler.name: handler for handler in handlers()}


def digest(row: str) -> str:
    """Return the digest of some responses to refused requests of an API in a version."""
    name, _, version = row.partition(" v")
    handler = HANDLERS[name]
    refused = []
    for seed in range(5):
        request = random_message(random.Random(f"{name} {version} {seed}"), handler.api.request_class, int(version))
        refused += [encode(handler.refuse(request, code, message), int(version)) for code, message in ERRORS]
    return hashlib.sha256(b"|".join(refused)).hexdigest()[:32]


def test_every_api_has_golden_refusals(request: pytest.FixtureRequest) -> None:
    served = ((name, HANDLERS[name].api.request_class) for name in sorted(HANDLERS))
    rows = [f"{name} v{version}" for name, kind in served for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1)]
    if request.config.getoption("--update-stories"):
        GOLDEN_FILE.write_text(json.dumps({row: GOLDEN.get(row) or digest(row) for row in rows}, indent=0) + "\n")
    else:
        assert list(GOLDEN) == rows, "run pytest --update-stories for a new API, and look at its responses"


@pytest.mark.parametrize("row", GOLDEN)
def test_refusal_is_the_same_bytes(row: str) -> None:
    assert digest(row) == GOLDEN[row]


def test_refusal_names_each_partition_of_the_request() -> None:
    refuse = refusal("topics.partitions <- topics.partitions").of(api_named("ListOffsets"))
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=7)])]
    )
    [topic] = refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, None).topics  # type: ignore[attr-defined]
    assert topic.name == "a"
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (7, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    ]


def test_refusal_without_a_path_sets_the_error_of_the_response() -> None:
    refuse = refusal().of(api_named("Heartbeat"))
    assert refuse(HeartbeatRequest(), ErrorCode.INVALID_GROUP_ID, "no") == HeartbeatResponse(
        error_code=ErrorCode.INVALID_GROUP_ID
    )


def test_path_of_uneven_sides_is_an_error() -> None:
    with pytest.raises(ValueError, match="both sides"):
        refusal("topics.partitions <- topics")
