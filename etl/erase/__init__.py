"""The command `erase`: no file below a root has the bytes of certain images any more, nor what was made of them.

Finding the images, repacking the others and deleting what is left belong here; parts and slices are made by the jobs
of `mapreduce`, as child processes that the command line starts."""
