"""The shuffle of the job `shard`: keys, partitioner, transports, ranges of local files.

A module belongs here if it decides what travels from mappers to reducers, in which form, and to which reducer. Which
slice an example goes to is decided in `etl.slices`; starting of jobs is in `mapreduce.jobs`."""
