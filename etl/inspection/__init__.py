"""The command `inspect`: show one record of a slice, with its image and its way back to the source file."""
