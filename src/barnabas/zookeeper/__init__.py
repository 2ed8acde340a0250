"""The embedded ZooKeeper: a durable, standalone server of the ZooKeeper 3.8 protocol, for one machine.

`wire` reads and writes jute; `tree`, `watches`, `sessions`, `prepare`, `machine` decide and are pure; `txnlog`, `snapshot`,
`store` keep it on disk in ZooKeeper's own file formats; `commit`, `listener`, `fourletter` serve it; `server` puts
it together.
"""
