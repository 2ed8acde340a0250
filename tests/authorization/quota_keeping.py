"""How quotas are set, stored and found: answers of AlterClientQuotas and DescribeClientQuotas, znodes, notifications.

Recorded of Apache Kafka as `tests/golden/kafka-3.9.1/quotas.json`.
"""

import json
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient

from barnabas.base.errors import ErrorCode
from barnabas.client.asynchronous import AsyncClient
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from barnabas.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.authorization.table import client_of

GOLDEN: Final = Path(__file__).parents[1] / "golden/kafka-3.9.1/quotas.json"
Named = tuple[tuple[str, str | None], ...]
EXACT, DEFAULT, ANY = 0, 1, 2

#: (entity, its new quota), in this order; None removes the quota.
CHANGES: Final[tuple[tuple[Named, tuple[tuple[str, float | None], ...]], ...]] = (
    ((("user", "alice"),), (("producer_byte_rate", 1000.0), ("request_percentage", 12.5))),
    ((("user", "al ice/*"),), (("consumer_byte_rate", 2000.0),)),
    ((("user", None),), (("controller_mutation_rate", 0.5),)),
    ((("client-id", "app"),), (("producer_byte_rate", 3000.0000001),)),
    ((("client-id", None),), (("consumer_byte_rate", 4000.0),)),
    ((("user", "alice"), ("client-id", "app")), (("producer_byte_rate", 5000.0),)),
    ((("user", "alice"), ("client-id", None)), (("producer_byte_rate", 6000.0),)),
    ((("user", None), ("client-id", "app")), (("producer_byte_rate", 7000.0),)),
    ((("user", None), ("client-id", None)), (("producer_byte_rate", 8000.0),)),
    ((("ip", "127.0.0.1"),), (("connection_creation_rate", 9000.0),)),
    ((("ip", "localhost"),), (("connection_creation_rate", 9001.0),)),
    ((("ip", None),), (("connection_creation_rate", 9002.0),)),
    ((("user", "alice"),), (("request_percentage", None), ("consumer_byte_rate", 10.0))),
    ((("client-id", "app"),), (("producer_byte_rate", None),)),
    ((("user", "nobody"),), (("producer_byte_rate", None),)),
    # Invalid changes, each for another reason.
    ((), (("producer_byte_rate", 1.0),)),
    ((("user", "a"),), (("producer_byte_rate", 1.5),)),
    ((("user", "a"),), (("nonsense", 1.0),)),
    ((("user", "a"),), (("connection_creation_rate", 1.0),)),
    ((("ip", "127.0.0.1"),), (("producer_byte_rate", 1.0),)),
    ((("ip", "127.0.0.1"),), (("connection_creation_rate", 1.5),)),
    ((("ip", "no such host."),), (("connection_creation_rate", 1.0),)),
    ((("user", "a"), ("ip", "127.0.0.1")), (("connection_creation_rate", 1.0),)),
    ((("user", ""),), (("producer_byte_rate", 1.0),)),
    ((("planet", "x"),), (("producer_byte_rate", 1.0),)),
)

#: (type, match kind, name) for each component; and whether the entity must have no other components.
QUESTIONS: Final[tuple[tuple[tuple[tuple[str, int, str | None], ...], bool], ...]] = tuple(
    (components, strict)
    for strict in (False, True)
    for components in (
        (),
        (("user", EXACT, "alice"),),
        (("user", DEFAULT, None),),
        (("user", ANY, None),),
        (("client-id", EXACT, "app"),),
        (("client-id", DEFAULT, None),),
        (("client-id", ANY, None),),
        (("user", EXACT, "alice"), ("client-id", EXACT, "app")),
        (("user", ANY, None), ("client-id", DEFAULT, None)),
        (("user", DEFAULT, None), ("client-id", ANY, None)),
        (("ip", EXACT, "127.0.0.1"),),
        (("ip", DEFAULT, None),),
        (("ip", ANY, None),),
        (("user", EXACT, "nobody"),),
        (("user", ANY, None), ("ip", ANY, None)),
        (("user", ANY, None), ("user", ANY, None)),
        (("client-id", ANY, None), ("client-id", ANY, None)),
        (("planet", ANY, None),),
        (("", ANY, None),),
    )
)


async def kept(bootstrap: str, zookeeper: str) -> dict[str, Any]:
    async with AsyncClient(client_of(bootstrap, "admin")) as admin:
        altered = [await _altered(admin, entity, changes) for entity, changes in CHANGES]
        described = [await _described(admin, *question) for question in QUESTIONS]
    return {"altered": altered, "described": described, "znodes": _znodes(zookeeper)}


async def _altered(admin: AsyncClient, entity: Named, changes: tuple[tuple[str, float | None], ...]) -> str:
    entry = RequestEntryData(
        entity=[RequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes],
    )
    answer = await admin.ask_any(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    [result] = answer.entries
    return f"{entity} {changes}: {ErrorCode(result.error_code).name} {result.error_message or ''}".strip()


async def _described(admin: AsyncClient, components: tuple[tuple[str, int, str | None], ...], strict: bool) -> Any:
    request = DescribeClientQuotasRequest(
        components=[ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components],
        strict=strict,
    )
    answer = await admin.ask_any(request, DescribeClientQuotasResponse)
    found = [f"{components} strict={strict}: {ErrorCode(answer.error_code).name} {answer.error_message or ''}".strip()]
    return found + sorted(
        f"{sorted((each.entity_type, each.entity_name or '<default>') for each in entry.entity)}: "
        f"{sorted((value.key, value.value) for value in entry.values)}"
        for entry in answer.entries or ()
    )


def _znodes(zookeeper: str) -> dict[str, Any]:
    client = KazooClient(zookeeper)
    client.start()
    found: dict[str, Any] = {}
    try:
        pending = ["/config/users", "/config/clients", "/config/ips", "/config/changes"]
        while pending:
            path = pending.pop()
            data, _ = client.get(path)
            found[path] = json.loads(data) if data else ""
            pending += [f"{path}/{child}" for child in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return dict(sorted(found.items()))


def load() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(GOLDEN.read_text())
    return recorded


def save(recorded: dict[str, Any]) -> None:
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")
