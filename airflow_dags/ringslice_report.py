"""A plugin of Airflow: the report of a DAG run of `image_dataset` as a tab of its page. To install: docs/airflow.md.

It serves the file that the XCom of the task ``report`` names, to users who may read the DAG's XComs; not from HDFS.
"""

import os
from html import escape
from pathlib import Path
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import DagAccessEntity, requires_access_dag
from airflow.models.xcom import XComModel
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the page can run and load nothing
PREFIX = "/ringslice"
PAGE = f"{PREFIX}/report/{{DAG_ID}}/{{RUN_ID}}"
MISSING = "<p style='font-family: sans-serif'>No report can be read here ({}). See the log of the task report.</p>"

app = FastAPI(title="Reports of ringslice")


@app.get("/report/{dag_id}/{run_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))])
def report(dag_id: str, run_id: str, session: SessionDep) -> HTMLResponse:
    """The page that the task ``report`` of this DAG run wrote; else status 404, and a page that says why."""
    query = XComModel.get_many(dag_ids=dag_id, task_ids="report", run_id=run_id, key="return_value", limit=1)
    found = session.scalars(query).first()
    summary: Any = XComModel.deserialize_value(found) if found is not None else None
    place = str(summary.get("place", "")) if isinstance(summary, dict) else ""
    is_there = place.endswith(".html") and os.access(place, os.R_OK) and Path(place).is_file()
    page = Path(place).read_bytes() if is_there else MISSING.format(escape(place or "none was written")).encode()
    return HTMLResponse(page, 200 if is_there else 404, {"Content-Security-Policy": POLICY})


class RingsliceReport(AirflowPlugin):
    """Registers the application and the tab."""

    name = "ringslice_report"
    fastapi_apps = ({"app": app, "url_prefix": PREFIX, "name": "Reports of ringslice"},)
    external_views = ({"name": "Data report", "href": PAGE, "destination": "dag_run", "url_route": "ringslice-report"},)
