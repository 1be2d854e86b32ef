"""What the files of single formats say before a pixel is decoded: segments, chunks, boxes, headers.

Nothing here decodes pictures: that is `etl.images.decode` and, for what Pillow reads, `etl.images.pillow_modes`.
"""
