"""`python -m bench [NAME…] [OPTIONS]`: all benchmarks, or those that are named."""

import importlib
import sys
from pathlib import Path

NAMES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem
    not in (
        "__init__",
        "__main__",
        "kafka",
        "limits",
        "memory",
        "report",
        "slow_store",
        "slow_workers",
        "summary",
        "tiered_spark",
    )
)


def main() -> None:
    given = sys.argv[1:]
    first = next((index for index, word in enumerate(given) if word.startswith("-")), len(given))
    chosen, options = given[:first] or NAMES, [word for word in given[first:] if word != "--"]
    for name in chosen:
        if name not in NAMES:
            sys.exit(f"no benchmark {name!r}; use one of {', '.join(NAMES)}")
    for name in chosen:
        print(f"== {name}")
        importlib.import_module(f"bench.{name}").main(options)


if __name__ == "__main__":
    main()
