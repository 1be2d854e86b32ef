"""A plugin of Airflow: the report of a DAG run of `image_dataset` as a tab of its page. To install: docs/airflow.md.

It serves the file that the XCom of the task ``report`` names, to users who may read the DAG's XComs; not from HDFS.
"""

from pathlib import Path
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import DagAccessEntity, requires_access_dag
from airflow.models.xcom import XComModel
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the page can run and load nothing
PREFIX = "/ringslice"
PAGE = f"{PREFIX}/report/{{DAG_ID}}/{{RUN_ID}}"

app = FastAPI(title="Reports of ringslice")


@app.get("/report/{dag_id}/{run_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))])
def report(dag_id: str, run_id: str, session: SessionDep) -> HTMLResponse:
    """The page that the task ``report`` of this DAG run wrote. Status 404 if there is none that can be read here."""
    query = XComModel.get_many(dag_ids=dag_id, task_ids="report", run_id=run_id, key="return_value", limit=1)
    found = session.scalars(query).first()
    summary: Any = XComModel.deserialize_value(found) if found is not None else None
    place = Path(str(summary.get("place", ""))) if isinstance(summary, dict) else Path()
    if place.suffix != ".html" or not place.is_file():
        raise HTTPException(404, f"no report of this run can be read here: {place}")
    return HTMLResponse(place.read_bytes(), headers={"Content-Security-Policy": POLICY})


class RingsliceReport(AirflowPlugin):
    """Registers the application and the tab."""

    name = "ringslice_report"
    fastapi_apps = ({"app": app, "url_prefix": PREFIX, "name": "Reports of ringslice"},)
    external_views = ({"name": "Data report", "href": PAGE, "destination": "dag_run", "url_route": "ringslice-report"},)
