"""Results as a text table, JSON, and a chart: `bench/results/<name>.{txt,json,svg}`."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.limits import Limit

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    name: str
    ours: float
    theirs: float
    #: The machine's limit in the row's unit; None if no measured limit applies.
    limit: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("inf")


def announce(name: str, rounds: int, *, round_s: float, setup_s: float) -> None:
    """Print how long it takes on the two cores on which the figures in `bench/results` were measured."""
    minutes = (setup_s + rounds * round_s) / 60
    print(f"{name}: {rounds} rounds, about {minutes:.1f} minutes on two quiet cores", flush=True)


def write_report(
    name: str,
    title: str,
    rows: Sequence[Row],
    *,
    rounds: int,
    raw: Any = None,
    rival: str = "Apache Kafka",
    interleaved: bool = True,
    limits: Sequence[Limit] = (),
) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = _table(title, rows, f"{rounds} interleaved rounds" if interleaved else f"{rounds} rounds", rival)
    text += limits_text(limits)
    print(text)
    (RESULTS / f"{name}.txt").write_text(text + "\n")
    data = {
        "title": title,
        "rounds": rounds,
        "rival": rival,
        "machine": {"cores": _cores(), "python": platform.python_version(), "system": platform.system()},
        "rows": [{**asdict(row), "ratio": round(row.ratio, 3)} for row in rows],
        "limits": [asdict(each) for each in limits],
        "raw": raw,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (RESULTS / f"{name}.svg").write_text(_chart(title, rows, rival, limits))


def limits_text(limits: Sequence[Limit]) -> str:
    """Return lines for the end of a table."""
    return "\n\nThe machine, in the same run: " + "; ".join(map(str, limits)) if limits else ""


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _table(title: str, rows: Sequence[Row], rounds: str, rival: str) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{title} (median of {rounds})", ""]
    lines.append(f"{'':{width}}  {'barnabas':>12}  {rival:>16}  {'ratio':>6}")
    lines += [f"{row.name:{width}}  {row.ours:>12.2f}  {row.theirs:>16.2f}  {row.ratio:>5.2f}x" for row in rows]
    return "\n".join(lines)


def _chart(title: str, rows: Sequence[Row], rival: str, limits: Sequence[Limit]) -> str:
    """Draw ratios as bars on a logarithmic scale around 1. A red mark is the limit of the machine."""
    import math

    left, middle, height = 300, 500, 22

    def extent(ratio: float) -> float:
        return max(-180.0, min(180.0, 60 * math.log2(ratio) if ratio > 0 else 0))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{60 + height * (len(rows) + len(limits))}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="10" y="20" font-size="15">{title}: ratio to {rival}</text>',
        f'<line x1="{middle}" y1="34" x2="{middle}" y2="{44 + height * len(rows)}" stroke="#999"/>',
    ]
    for number, row in enumerate(rows):
        y = 40 + number * height
        long = extent(row.ratio)
        x, size = (middle, long) if long >= 0 else (middle + long, -long)
        parts.append(f'<text x="{left}" y="{y + 13}" text-anchor="end">{row.name}</text>')
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="{size:.0f}" height="{height - 6}" fill="#4a7"/>')
        parts.append(f'<text x="690" y="{y + 13}">{row.ratio:.2f}x</text>')
        if row.limit is not None and row.theirs:
            mark = middle + extent(row.limit / row.theirs)
            parts.append(f'<path d="M{mark:.0f} {y - 2}V{y + height - 4}" stroke="#b00" stroke-width="2"/>')
    for number, each in enumerate(limits):
        parts.append(f'<text x="10" y="{62 + height * (len(rows) + number)}" fill="#b00">{each}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Curve:
    name: str
    #: (x, y) with rising x above 0.
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One chart: curves over a logarithmic x axis, y from 0. `limit` is drawn as a line that they must stay below."""

    title: str
    curves: Sequence[Curve]
    limit: float | None = None


_COLORS = ("#285", "#c52", "#36a", "#888")
_WIDTH, _HEIGHT, _LEFT, _TOP = 250, 150, 60, 60


def write_panels(name: str, title: str, panels: Sequence[Panel], limits: Sequence[Limit] = ()) -> None:
    """Write `bench/results/<name>.svg`: panels side by side, and the limits of the machine below them."""
    step = _WIDTH + _LEFT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{step * len(panels) + 10}" height="{_TOP + _HEIGHT + 110}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{title}</text>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({_LEFT + number * step},{_TOP})">')
        parts += [*_panel(panel), "</g>"]
    parts.append(f'<text x="10" y="{_TOP + _HEIGHT + 100}" fill="#b00">{"; ".join(map(str, limits))}</text>')
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.svg").write_text("\n".join([*parts, "</svg>"]) + "\n")


def _panel(panel: Panel) -> list[str]:
    import math

    xs = sorted({x for curve in panel.curves for x, _ in curve.points})
    highest = max([y for curve in panel.curves for _, y in curve.points] + [panel.limit or 0]) * 1.1 or 1
    span = math.log(xs[-1] / xs[0]) or 1

    def at(x: float, y: float) -> tuple[float, float]:
        return _WIDTH * math.log(x / xs[0]) / span, _HEIGHT * (1 - max(0, y) / highest)

    parts = [
        f'<text x="0" y="-12" font-weight="bold">{panel.title}</text>',
        f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="#999"/>',
    ]
    for x in xs:
        parts.append(f'<text x="{at(x, 0)[0]:.0f}" y="{_HEIGHT + 15}" text-anchor="middle">{x:,.0f}</text>')
    for y in (highest / 1.1, highest / 2.2, 0):
        parts.append(f'<text x="-6" y="{at(xs[0], y)[1] + 4:.0f}" text-anchor="end">{y:,.3g}</text>')
    if panel.limit is not None:
        y = at(xs[0], panel.limit)[1]
        parts.append(f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="#b00" stroke-dasharray="4 3"/>')
    for number, curve in enumerate(panel.curves):
        color = _COLORS[number % len(_COLORS)]
        places = [at(x, y) for x, y in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        parts.append(f'<text x="0" y="{_HEIGHT + 36 + 15 * number}" fill="{color}">{curve.name}</text>')
    return parts
