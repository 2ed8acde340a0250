"""The inside of a broker as JSON, beside its metrics: what it knows and no request of Kafka's protocol tells.

`barnabas.inside.enable` turns it on. Each view is a function that makes plain values of objects that exist for other
reasons: a broker that nobody looks into pays nothing. Answers are bounded, and say how much they leave out. They hold
no records and no secrets. `routes` has the table of views; docs/metrics.md describes them.
"""
