"""Clients of any Kafka cluster. One set of decisions, two shells.

* Decisions, without I/O: `core` (whom to ask, when to try again, what to forget), `exchange` (one connection's requests and
  answers), `sending` (batches on their way), `fetching`, `transactions`, `admin.*` (one function an operation).
* For asyncio: `asynchronous.AsyncClient`, `producer.Producer`, `consumer.Consumer`, `group.GroupConsumer`.
* For threads: `blocking.BlockingClient`, `blocking_producer.BlockingProducer`, `blocking_transactions.BlockingTransactions`.
  `BlockingClient.run` carries out anything that is written against the core.
"""
