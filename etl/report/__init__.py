"""The command `report`: one HTML page about a set of slices or about a training run, with everything in it.

`command` chooses the page by what a place holds; `dataset` and `run` make one kind of page each. Only what both use
belongs at this level: `render`, `drawing`, `text` and the HTML in `templates`. Only `drawing` and the two `charts`
import matplotlib, only `render` imports jinja2."""
