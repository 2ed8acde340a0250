"""The metrics of several brokers as one page, each sample with the label `broker`. Pure."""

from collections.abc import Mapping


def merge(pages: Mapping[int, str]) -> str:
    """`pages`: what each broker shows, in Prometheus's text form. A family's samples stand together, as the form demands."""
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
    """The name ends at the first brace or blank: neither is part of one."""
    end = min(at for at in (sample.find("{"), sample.find(" ")) if at > 0)
    name, rest = sample[:end], sample[end:]
    if rest.startswith("{"):
        return f'{name}{{broker="{broker_id}",{rest[1:]}'
    return f'{name}{{broker="{broker_id}"}}{rest}'
