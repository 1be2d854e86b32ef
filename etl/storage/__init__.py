"""Files on any root: local and HDFS behind one interface, with atomic and exclusive commits.

Everything that opens, lists, renames or deletes files belongs here, with its retries and its error messages."""
