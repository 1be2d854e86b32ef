"""Readers of segments, chunks, boxes and headers, one module per format.

They decode no pixels: that is `etl.images.decode` and, for what Pillow reads, `etl.images.pillow_modes`."""
