"""Finds problems in settings or in a cluster: typed findings, for the tool that prints them and the console that shows them.

`cluster.check_cluster` asks brokers and ZooKeeper (`look`) and judges the answers (`checks`, one file per subject).
`files.check_files` checks settings files and the machine that they are for. The doctor changes nothing.
"""
