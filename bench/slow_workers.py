"""Python workers of Spark with slower requests to an object store, as slow as for the broker of `bench.tiered`."""

from barnabas.broker.features.tiered.store import open_store
from barnabas.spark import daemon, tier_plan, tier_reads
from bench.slow_store import Slow


def slow_down() -> None:
    """Call before workers are forked."""
    for module in (tier_plan, tier_reads):
        module.open_store = lambda url, settings: Slow(open_store(url, settings))  # type: ignore[attr-defined]


if __name__ == "__main__":
    slow_down()
    daemon.main()
