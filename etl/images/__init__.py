"""Bytes of one image file in, bytes of one normalised image out, or a reject with a reason.

A module belongs here if it works on one image in memory. No storage, no stages, no lists of images."""
