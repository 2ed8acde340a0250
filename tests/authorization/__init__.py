"""Who may do what: every API asked under every kind of ACL, and what Apache Kafka 3.9.1 answered.

`probes` are the requests, `entries` the ACLs, `table` asks one under the other and compares. The answers of Apache Kafka are
`tests/golden/kafka-3.9.1/authorization.json`: `make interop` asks it again and compares, `make test` holds our broker to them.
"""
