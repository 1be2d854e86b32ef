"""The command `erase`: no file of raw and normalized has the bytes of certain images any more, nor of any generation.

Finding the images, repacking the others and deleting what is left belong here; parts are made by the job of
`mapreduce`."""
