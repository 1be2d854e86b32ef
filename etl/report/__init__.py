"""The report on a set of slices, as an HTML page, and what every page needs.

`dataset_page` gathers what its template shows; `balance` has classes and slices, `pictures` the images. `render` and
`charts` serve `train.report` too. Only `render` imports jinja2, only `charts` matplotlib."""
