"""The shuffle of the job `shard`: the form in which mappers send examples to reducers, and the keys.

A module belongs here if it decides what is sent from mappers to reducers, in which form, and to which reducer. Which
slice an example belongs to is decided in `etl.slices`; jobs are started in `mapreduce.jobs`."""
