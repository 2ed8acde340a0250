"""`barnabas metadata`: save a cluster's metadata to a file, and restore it to a cluster.

`document` is the saved data, `plan` the steps of a restore; `brokers` and `znodes` are the two ways to read and write it.
"""
