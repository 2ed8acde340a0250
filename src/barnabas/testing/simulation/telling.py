"""A failing seed in words: what failed, which faults it takes, what happened in order, and how to run it again."""

from pathlib import Path

from barnabas.testing.simulation.running import Report
from barnabas.testing.simulation.worker import Function

#: Lines of the story that an error shows; the file has all.
LINES_MAX = 60
_LINE_CHARACTERS = 200
#: What brokers write that a reader of an application's story does not need.
_BROKERS_DETAILS = ("[log", "log directory", "[features]", "[zookeeper]", "[isr]", "[cleaner]", "starts, life")


def tell(place: Function, first: Report, shortest: Report, *, runs: int, story: Path | None) -> str:
    lines = [f"seed {first.seed} fails, after {runs} {'run' if runs == 1 else 'runs'}: {shortest.broken}"]
    if shortest.trace:
        lines.append(shortest.trace.rstrip())
    else:
        lines.append(shortest.message)
    lines.append("")
    if shortest.faults:
        left_out = f" (of {len(first.faults)}; without the others it fails, too)" if shortest.skipped else ""
        lines.append(f"The faults it takes{left_out}:")
        lines += [f"  {when_s:9.3f} s  {what}" for when_s, subject, what in shortest.story if subject == "FAULT"]
    else:
        lines.append("It takes no fault.")
    lines += ["", "What happened, in virtual seconds:", *story_lines(shortest), ""]
    if story is not None:
        lines.append(f"The whole story is in {story}")
    lines.append(f"Run it again: pytest --simulation-seed {first.seed} {place.file}::{place.name.replace('.', '::')}")
    return "\n".join(lines)


def story_lines(report: Report, last: int = LINES_MAX) -> list[str]:
    """Return the end of the story, without what only the brokers' authors want to know."""
    lines = [
        f"  {when_s:9.3f}  {subject:<12} {what.splitlines()[0][:_LINE_CHARACTERS] if what else ''}"
        for when_s, subject, what in report.story
        if subject == "FAULT" or not _is_detail(subject, what)
    ]
    left_out = len(lines) - last
    return lines if left_out <= 0 else [f"  … {left_out} lines before", *lines[-last:]]


def _is_detail(subject: str, what: str) -> bool:
    if subject == "world":
        return what.startswith("[")
    is_broker = subject == "zk" or (subject[:1] == "b" and subject[1:].isdigit())
    return is_broker and what.startswith(_BROKERS_DETAILS)
