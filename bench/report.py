"""Results as a text table, JSON, and a chart: `bench/results/<name>.{txt,json,svg}`."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    name: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("inf")


def write_report(
    name: str,
    title: str,
    rows: Sequence[Row],
    *,
    rounds: int,
    raw: Any = None,
    rival: str = "Apache Kafka",
    interleaved: bool = True,
) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = _table(title, rows, f"{rounds} interleaved rounds" if interleaved else f"{rounds} rounds", rival)
    print(text)
    (RESULTS / f"{name}.txt").write_text(text + "\n")
    data = {
        "title": title,
        "rounds": rounds,
        "rival": rival,
        "machine": {"cores": _cores(), "python": platform.python_version(), "system": platform.system()},
        "rows": [{**asdict(row), "ratio": round(row.ratio, 3)} for row in rows],
        "raw": raw,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (RESULTS / f"{name}.svg").write_text(_chart(title, rows, rival))


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _table(title: str, rows: Sequence[Row], rounds: str, rival: str) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{title} (median of {rounds})", ""]
    lines.append(f"{'':{width}}  {'barnabas':>12}  {rival:>16}  {'ratio':>6}")
    lines += [f"{row.name:{width}}  {row.ours:>12.2f}  {row.theirs:>16.2f}  {row.ratio:>5.2f}x" for row in rows]
    return "\n".join(lines)


def _chart(title: str, rows: Sequence[Row], rival: str) -> str:
    """Ratios as bars on a logarithmic scale around 1: what is one is easy to see."""
    import math

    left, middle, height = 300, 500, 22
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{60 + height * len(rows)}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="10" y="20" font-size="15">{title}: ratio to {rival}</text>',
        f'<line x1="{middle}" y1="34" x2="{middle}" y2="{44 + height * len(rows)}" stroke="#999"/>',
    ]
    for number, row in enumerate(rows):
        y = 40 + number * height
        extent = max(-180.0, min(180.0, 60 * math.log2(row.ratio) if row.ratio > 0 else 0))
        x, size = (middle, extent) if extent >= 0 else (middle + extent, -extent)
        parts.append(f'<text x="{left}" y="{y + 13}" text-anchor="end">{row.name}</text>')
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="{size:.0f}" height="{height - 6}" fill="#4a7"/>')
        parts.append(f'<text x="690" y="{y + 13}">{row.ratio:.2f}x</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
