"""The command `verify`: check every byte of a set of slices and what it was made from; repair it.

Checks and repair belong here; the job that distributes the checks is `mapreduce.verify`."""
