"""Decoding of values that strangers wrote: the one home for the console and for Spark.

fastavro, protobuf and json see bytes only after the bounds of this package hold for them. A value beyond a bound raises
`Unreadable`: the console shows its bytes with the reason, Spark writes it to the dead letters.
"""
