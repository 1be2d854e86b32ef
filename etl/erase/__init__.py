"""The command `erase`: no file below a root has the bytes of certain images any more, nor what was made of them.

Finding the images, repacking the others and deleting what is left belong here; parts are made by the job of
`mapreduce`."""
