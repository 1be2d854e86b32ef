"""What every job needs to run: driver, work list, local runner, YARN, packed Python environment.

What one job computes is in its script: `mapreduce.normalize`, `mapreduce.shard`, `mapreduce.verify`."""
