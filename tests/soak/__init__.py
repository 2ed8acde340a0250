"""Real clusters under load while things break. Run by hand for minutes; `tests/scenarios/faults` runs it for seconds."""
