"""An Airflow DAG: lands streams in a lake, checks them, and runs a job over them.

Each task is a command, so that Airflow's workers need synrepl and Spark only on PATH. Runs may be
retried: landing continues where the last commit ended.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

LAKE = "/srv/lake"
DATABASE = "--database-path /etc/synrepl/lake.dsn"
SPARK = "--master spark://spark:7077 --scratch /var/tmp"

with DAG(
    "synrepl_lake",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,  # a run lands everything, whatever hour it is of
    max_active_runs=1,  # a lake has one writer; a second one is refused
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
):
    land = BashOperator(
        task_id="land", bash_command=f"synrepl lake land {LAKE} {DATABASE} {SPARK} --json"
    )
    check = BashOperator(
        task_id="check",
        bash_command=f"synrepl lake check {LAKE} {DATABASE} {SPARK} --json",
        retries=0,  # a difference does not pass
    )
    activity = BashOperator(
        task_id="activity", bash_command=f"synrepl lake run activity {LAKE} {SPARK} --json"
    )
    land >> check
    land >> activity
