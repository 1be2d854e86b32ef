"""The command `doctor`: checks of this machine and its cluster, each with a remedy.

A check belongs here if it looks at the environment (Python, Hadoop, storage, YARN, training). Checks of data belong to
`etl.verify`. Imported by `mapreduce.cli` only."""
