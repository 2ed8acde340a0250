"""What is in this image, as a CycloneDX document on standard output: Debian's packages and Python's.

`podman run --rm --entrypoint /opt/barnabas/bin/python barnabas /opt/barnabas/sbom.py > sbom.json`
"""

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

STATUS = (Path("/var/lib/dpkg/status"), *sorted(Path("/var/lib/dpkg/status.d").glob("*")))


def debian() -> Iterator[dict[str, str]]:
    for file in STATUS:
        if not file.is_file() or file.name.endswith(".md5sums"):
            continue
        for paragraph in file.read_text(errors="replace").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
            if "Package" in fields and "Version" in fields:
                name, version = fields["Package"], fields["Version"]
                purl = f"pkg:deb/debian/{name}@{version}"
                yield {"type": "library", "name": name, "version": version, "purl": purl}


def python() -> Iterator[dict[str, object]]:
    for found in importlib.metadata.distributions():
        name, version = found.metadata["Name"], found.version
        part: dict[str, object] = {"type": "library", "name": name, "version": version}
        part["purl"] = f"pkg:pypi/{name.lower()}@{version}"
        if words := found.metadata.get("License-Expression") or found.metadata.get("License"):
            part["licenses"] = [{"license": {"name": words.splitlines()[0]}}]
        yield part


def main() -> None:
    parts = sorted([*debian(), *python()], key=lambda part: str(part["purl"]))
    version = importlib.metadata.version("barnabas")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "barnabas", "version": version}},
        "components": parts,
    }
    json.dump(document, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
