"""The Horovod trainer: every rank reads its share of the slices, all reduce their gradients in a ring.

Only scripts (`main`, `evaluate`, `export`, `predict`, `read_bench`) and the loop of training belong at this level;
their parts are in the packages below. Formats of slices are in `etl`; nothing here imports `mapreduce`."""
