"""Authorization: every API requested under every kind of ACL, and the answers of Apache Kafka 3.9.1.

`probes` are the requests, `entries` the ACLs, `table` sends the requests under the ACLs and compares. The answers of Apache
Kafka are in `tests/golden/kafka-3.9.1/authorization.json`: `make interop` records them again and compares, `make test` compares
our broker with them.
"""
