"""The command `inspect`: show a whole slice or part, or one of its examples with its image and where it came from.

Reading of one file of records, and of the stages before it, belongs here. Checks of a whole dataset are in
`etl.verify`."""
