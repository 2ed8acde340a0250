"""The image's health check: whether a restart would help. Exits with 1 if so.

A broker is asked at its metrics port. What else the image may run (`up`, `zookeeper`, `console`, …) is well while it runs.
"""

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main() -> int:
    command = Path("/proc/1/cmdline").read_bytes().split(b"\0")
    # With --init, or in another's process namespace, the first process is not ours: then ask all the same.
    if any(each.endswith(b"barnabas") for each in command) and b"broker" not in command:
        return 0
    port = os.environ.get("KAFKA_BARNABAS_METRICS_PORT", "9404")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=4):
            return 0
    except (OSError, urllib.error.HTTPError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
