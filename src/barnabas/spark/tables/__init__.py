"""Topics as tables: one Spark application keeps Delta and Iceberg tables as their topics are.

`definition`  what a table is made of, and how it is stored
`catalogue`   where definitions and reports are kept: a compacted topic of the cluster
`inference`   columns out of JSON that has no schema
`rows`        records as rows, each good or with the reason of its error
`renames`     fields that have a new name, in tables that can follow
`targets`     where rows go: the sinks of `pipelines`, which remember the offsets that they hold
`filling`     one batch: read, staged by tasks, published once
`upkeep`      small files into large ones, old versions away
`state`       how fresh, large and complete a table is
`runner`      all tables, until it is stopped
"""
