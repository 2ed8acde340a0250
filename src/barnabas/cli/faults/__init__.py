"""Faults of a local cluster: for `barnabas.testing`, and for `barnabas fault` with clusters of `up --faults`."""
