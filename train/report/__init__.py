"""Reports on training runs, as HTML pages: of one run, or comparing several; finished or not.

`run_files` and `metrics` read the files of a run; `run_page` and `comparison` gather what their templates show;
`run_charts` draws. What every page needs is in `etl.report`. No framework is imported."""
