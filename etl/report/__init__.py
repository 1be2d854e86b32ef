"""The report on a set of slices, as an HTML page, and what every page needs.

`dataset_page` gathers what its template shows, section by section: `balance`, `source_images`, `pictures`, `verified`.
`render`, `charts` and `text` serve `train.report` too. Only `render` imports jinja2, only `charts` matplotlib."""
