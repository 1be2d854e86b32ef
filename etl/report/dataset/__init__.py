"""The report page of a set of slices.

Each module computes one section from the tables and markers, batch by batch, with bounded memory; `charts` draws,
`page` puts the sections together."""
