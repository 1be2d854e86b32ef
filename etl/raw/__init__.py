"""The folder `ROOT/raw`: packs of source images, their lists, and what the source no longer has.

The command `ingest` belongs here; where images come from is in `etl.sources`."""
