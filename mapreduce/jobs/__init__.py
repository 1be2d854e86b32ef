"""What every job needs to run: driver, work list, local runner, YARN, packed Python environment; and in which form
`shard` sends examples to its reducers.

What one job computes is in its script: `mapreduce.normalize`, `mapreduce.shard`, `mapreduce.verify`."""
