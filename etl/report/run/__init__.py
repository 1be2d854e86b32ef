"""The report pages of training runs: of one, with curves, waits, classes and settings, and of several, compared.

`files` and `metrics` read the files of a run; `waits` and `confusion` compute from them; `curves` draws; `page` and
`compare` put a page together."""
