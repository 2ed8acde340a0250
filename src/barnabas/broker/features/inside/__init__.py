"""The internal state of a broker as JSON, next to its metrics: details that Kafka's protocol does not report.

`barnabas.inside.enable` turns it on. Each view is a function that reads existing objects, so that a broker without
viewers has no extra cost. Answers are bounded, and say how much they leave out. They contain no records and no
secrets. `routes` has the table of views; docs/metrics.md describes them.
"""
