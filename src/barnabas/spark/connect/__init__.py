"""Kafka Connect's connectors on Spark: a connector's own JSON file runs as it is (`barnabas connect`).

`files` reads the JSON, `classes` is the table of connectors, `converters` and `transforms` turn bytes into records and change
them, record by record and without Spark. `engine` runs them as streaming queries.

The records of a connector have no schema that is known in advance: it is in each record, or in a registry. So transforms here
are functions of one record. `barnabas.spark.pipelines.transforms` has those for DataFrames, whose schema Spark must know first.
"""
