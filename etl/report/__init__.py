"""The command ``report``: one HTML page about a set of slices, with everything in it.

`etl.report.command` puts it together. What it tells is computed apart from how it is drawn: `balance`, `sources`,
`samples`, `verified` and `costs` read the tables and markers, batch by batch, and bound what they keep; `charts` draws;
`etl/report/templates/report.html` is the page. Only `charts` imports matplotlib, only `page` jinja2.
"""
