"""Real clusters under load with faults. Run by hand for minutes; `tests/scenarios/faults` runs them for seconds."""
