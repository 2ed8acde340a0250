"""Write the tables of docs/performance.md from the last results: `python -m bench.summary`."""

import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
RESULTS = _HERE / "results"
DOCUMENT = _HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- results: written by `python -m bench.summary` -->\n", "<!-- end of results -->"

#: In the order of interest.
SHOWN = (
    "broker",
    "cluster",
    "groups",
    "share",
    "compaction",
    "start",
    "recovery",
    "link",
    "tiered",
    "tiered_copying",
    "tiered_spark",
    "spark",
    "pipelines",
    "tables",
)
_GAPS = {
    "partitions": "partitions",
    "controller_gap_ms": "leader and controller killed, ms",
    "kill_gap_ms": "leader killed, ms",
    "stop_gap_ms": "leader stopped, ms",
    "create_s": "created in s",
    "memory_mb": "memory, MB",
    "restart_s": "back in sync, s",
}


def text() -> str:
    parts = [_table(name) for name in SHOWN if (RESULTS / f"{name}.json").exists()]
    return "\n".join([*parts, _failover()])


def _loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _table(name: str) -> str:
    result = _loaded(name)
    lines = [
        f"**{result['title']}**, median of {result['rounds']} rounds (`python -m bench {name.partition('_')[0]}`)",
        "",
    ]
    lines += [f"| | barnabas | {result['rival']} | ratio |", "|---|---:|---:|---:|"]
    for row in result["rows"]:
        ours, theirs = (f"{row[side]:,.2f}" for side in ("ours", "theirs"))
        lines.append(f"| {row['name']} | {ours} | {theirs} | {row['ratio']:.2f}x |")
    return "\n".join([*lines, ""])


def _failover() -> str:
    """Curves have no counterpart at each of their points."""
    result = _loaded("failover")
    fields = {field: said for field, said in _GAPS.items() if field in result["points"][0]}
    lines = [f"**{result['title']}** (`python -m bench failover`)", ""]
    lines += [f"| | {' | '.join(fields.values())} |", f"|---|{'---:|' * len(fields)}"]
    for point in result["points"]:
        values = " | ".join(f"{point[field]:,.2f}".removesuffix(".00") for field in fields)
        lines.append(f"| {point['system']} | {values} |")
    return "\n".join([*lines, ""])


def main() -> None:
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}")


if __name__ == "__main__":
    main()
