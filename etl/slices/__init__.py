"""The folder `ROOT/slices/NAME`: plan, writer, manifest, and the splits of previous slices.

What decides which example goes to which slice belongs here. Arithmetic alone is in `etl.partition`, the job is
`mapreduce.shard`."""
