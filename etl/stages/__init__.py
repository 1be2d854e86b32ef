"""What every stage does alike: lease, resume, marker, update, summary, run record, layout of folders.

Nothing here knows what a stage computes."""
