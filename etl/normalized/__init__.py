"""The folder `ROOT/normalized`: parts, their rows, their rejects, and which rows are live.

Writing and reading of parts belongs here; decoding is in `etl.images`, the job is `mapreduce.normalize`."""
