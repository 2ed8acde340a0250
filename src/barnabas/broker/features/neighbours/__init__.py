"""Each broker reports to all others every few seconds.

So it knows which of them it cannot reach, how long their answers take, and by how much their clocks differ; and a broker that
runs, but is no longer in the cluster, is still heard. Other traffic shows a cut late or not at all: a follower waits half a
minute for an answer, and two brokers without a common partition exchange nothing. `barnabas doctor` asks each broker with
DescribeNeighbours; gauges report the same.
"""
