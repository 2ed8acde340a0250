"""What is wrong with settings or with a cluster: typed findings, for the tool that prints them and for whoever shows them.

`cluster.check_cluster` asks brokers and ZooKeeper (`look`) and judges the answers (`checks`, one file a subject).
`files.check_files` does the same for settings and the machine that they are for. Nothing is changed.
"""
