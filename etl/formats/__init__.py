"""File formats: TFRecord, `tf.train.Example`, Parquet tables and their schemas.

A module belongs here if it turns values into bytes of a format, or back, and does not know which stage uses it.
Where files lie is decided by the package of their stage."""
