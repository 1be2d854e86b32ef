"""The command `erase`: no file below a root has the bytes of certain images any more, nor what was made of them.

Finding the images, packing the others anew and clearing what is left belong here; parts and slices are made by the jobs
of `mapreduce`, as child processes that the command line starts."""
