"""Where raw images come from: folders, IDX files, archives, Parquet files, or a list of any files.

A module belongs here if it finds images in a source, or reads their bytes, keys, labels and splits. Packing them is in
`etl.raw`, decoding in `etl.images`."""
