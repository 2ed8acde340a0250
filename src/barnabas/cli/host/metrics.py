"""The metrics of several brokers as one page, each sample with the label `broker`. Pure."""

from collections.abc import Mapping


def merge(pages: Mapping[int, str]) -> str:
    """Merge the brokers' metrics pages (Prometheus text). The samples of a family stay together, as the format requires."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for broker_id, page in pages.items():
        about: list[str] = []
        samples: list[str] = []
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                about, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
                if not any(known.startswith(line[:7]) for known in about):
                    about.append(line)
            elif line and not line.startswith("#"):
                samples.append(_labelled(line, broker_id))
    return "".join(f"{line}\n" for about, samples in families.values() for line in (*about, *samples))


def _labelled(sample: str, broker_id: int) -> str:
    """Add the label. The name ends at the first brace or blank, since neither is part of a name."""
    end = min(at for at in (sample.find("{"), sample.find(" ")) if at > 0)
    name, rest = sample[:end], sample[end:]
    if rest.startswith("{"):
        return f'{name}{{broker="{broker_id}",{rest[1:]}'
    return f'{name}{{broker="{broker_id}"}}{rest}'
