"""Clients of any Kafka cluster: one core that decides, and two shells that do the I/O.

* Decisions, without I/O: `core` (which broker to ask, when to retry, which metadata to forget), `exchange` (the requests and
  responses of one connection), `sending` (batches in flight), `fetching`, `transactions`, `admin.*` (one function per
operation).
* For asyncio: `asynchronous.AsyncClient`, `producer.Producer`, `consumer.Consumer`, `group.GroupConsumer`,
    `share_consumer.ShareConsumer`.
* For threads: `blocking.BlockingClient`, `blocking_producer.BlockingProducer`, `blocking_transactions.BlockingTransactions`.
    `BlockingClient.run` runs any operation that is written against the core.
"""
