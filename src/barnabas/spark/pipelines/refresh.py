"""Plans a full refresh: finds what it resets, and the tables and sinks that would then have their rows twice.

A table that is reset gets all its rows again. A flow that reads it as a stream takes them for new ones: tables and sinks behind
it would have each row twice after the next run. So they are reset, too, or nothing is.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from barnabas.spark.pipelines._flows import Flows, short
from barnabas.spark.pipelines.connector import Sink
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.sinks import emptying


@dataclass(frozen=True)
class Reset:
    """The tables that Spark resets, and the sinks that we reset."""

    tables: tuple[str, ...]
    sinks: Mapping[str, Sink]


def behind(names: Collection[str], flows: Flows) -> set[str]:
    """Return the tables, views and sinks that get rows of these, directly or not, as streams."""
    found: set[str] = set()
    reached = set(names)
    while reached:
        more = {flows.targets[flow] for flow, read in flows.streams.items() if read & reached and flow in flows.targets}
        reached = more - found
        found |= more
    return found


def plan(names: Collection[str], flows: Flows, sinks: Mapping[str, Sink], *, sinks_are_settled: bool) -> Reset:
    """Plan `--full-refresh` of these. Raises if rows would be doubled. `sinks_are_settled`: the options say what to do with
    sinks."""
    chosen = {short(name) for name in names}
    stale = behind(chosen, flows) - chosen - flows.views
    if stale:
        stocks = [_described(name, sinks) for name in sorted(stale)]
        wanted = " ".join(f"--full-refresh {name}" for name in (*names, *sorted(stale)))
        empty = " --empty-sinks" if sinks.keys() & stale else ""
        raise PipelineFailed(
            f"a full refresh of {', '.join(names)} writes its rows again, and these would have them twice: "
            f"{'; '.join(stocks)}. Refresh these as well: {wanted}{empty}"
        )
    named = {name: sinks[name] for name in sorted(chosen & sinks.keys())}
    if named and not sinks_are_settled:
        raise keeps("a full refresh", named)
    return Reset(tuple(name for name in names if short(name) not in sinks), named)


def keeps(what: str, sinks: Mapping[str, Sink]) -> PipelineFailed:
    stocks = "; ".join(_described(name, sinks) for name in sinks)
    return PipelineFailed(
        f"{what} would write all rows again into sinks, which keep the rows that they have: {stocks}. --empty-sinks "
        "deletes these first, --sinks-again writes behind them; or reset only tables, with --full-refresh NAME"
    )


def _described(name: str, sinks: Mapping[str, Sink]) -> str:
    return f"{name}, a {emptying.stock_of(sinks[name])}" if name in sinks else name
