"""The command `report`: one HTML page about a set of slices, about a training run, or about several runs.

`command` chooses the page by what the places are; `dataset` and `run` make the pages. Only what both use belongs here:
`render`, `charts`, `text`, and the HTML in `templates`. Only `render` imports jinja2."""
