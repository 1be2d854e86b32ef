"""The commands `verify` and `inspect`: check every byte of a set of slices and what it was made from; repair it; show a
slice or one of its examples.

Checks, repair and `inspection` belong here; the job that distributes the checks is `mapreduce.verify`."""
