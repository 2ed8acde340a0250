"""`barnabas metadata`: a cluster's metadata in a file, and from a file back into a cluster.

`document` is what is kept, `plan` what a restore would do; `brokers` and `znodes` are the two ways to read and write it.
"""
