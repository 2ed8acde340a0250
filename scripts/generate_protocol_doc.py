"""Write docs/protocol.md: the table of APIs and versions, from the code that serves them.

python scripts/generate_protocol_doc.py            # rewrites the page
python scripts/generate_protocol_doc.py --check    # says whether it is up to date
"""

import argparse
import sys
from pathlib import Path

from barnabas.wire.versions import API, INTER_BROKER, KRAFT_ONLY

TARGET = Path(__file__).resolve().parent.parent / "docs/protocol.md"

HEAD = """\
# Protocol

Kafka's wire protocol, as in `barnabas.wire.versions`. Written by `scripts/generate_protocol_doc.py`: do not edit.

A broker advertises those rows below for which it has handlers. "Flexible from" is the first version with compact types and
tagged fields ([KIP-482](https://cwiki.apache.org/confluence/display/KAFKA/KIP-482)); a dash means that no version has them.
The reason why Produce begins at 0, and the source of the other versions, are in [ADR 2](adr/0002-messages.md).

| key | API | versions | request flexible from | response flexible from | module |
|---:|---|---|---:|---:|---|
"""

TAIL = """
Not served, because they belong to KRaft's quorum: {kraft}.

The requests of a ZooKeeper-mode controller, gone in Kafka 4, are {inter_broker}.
"""


def page() -> str:
    rows = []
    for key, api in sorted(API.items()):
        if key in KRAFT_ONLY:
            continue
        flexible = [
            str(first) if first <= api.max_version else "-"
            for first in (api.request_flexible_from, api.response_flexible_from)
        ]
        rows.append(
            f"| {key} | {api.name} | {api.min_version}-{api.max_version} | {flexible[0]} | {flexible[1]} "
            f"| `{api.request_class.__module__.removeprefix('barnabas.wire.')}` |\n"
        )

    def names(keys: frozenset[int]) -> str:
        return ", ".join(API[key].name for key in sorted(keys))

    return HEAD + "".join(rows) + TAIL.format(kraft=names(KRAFT_ONLY), inter_broker=names(INTER_BROKER))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page would change")
    arguments = parser.parse_args()
    text = page()
    current = TARGET.exists() and TARGET.read_text() == text
    if not arguments.check:
        TARGET.write_text(text)
    print(f"docs/protocol.md {'is up to date' if current else 'changed'}")
    return 1 if arguments.check and not current else 0


if __name__ == "__main__":
    sys.exit(main())
