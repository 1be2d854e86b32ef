# Airflow, in an environment of its own: it shares no package with the project's. Included by the Makefile.

AIRFLOW_VENV := .venvs/airflow
AIRFLOW_INSTALLED := $(AIRFLOW_VENV)/.installed

ifndef UNDER_INSTALL_LOCK
$(AIRFLOW_INSTALLED): airflow_dags/requirements.txt
	@mkdir -p $(dir $(AIRFLOW_VENV)) && flock $(AIRFLOW_VENV).lock $(MAKE) --no-print-directory UNDER_INSTALL_LOCK=1 $@
else
$(AIRFLOW_INSTALLED): airflow_dags/requirements.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is missing; install it first: apt-get install python3.11 python3.11-venv" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv; install it first: apt-get install python3-venv" >&2; exit 3; }
	test -x $(AIRFLOW_VENV)/bin/python || $(PYTHON) -m venv $(AIRFLOW_VENV)
	$(AIRFLOW_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@
endif
