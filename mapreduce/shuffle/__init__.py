"""The shuffle of the job `shard`: keys, partitioner, escaped bytes, ranges of parts."""
