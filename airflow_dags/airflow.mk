# Airflow, in an environment of its own: it shares no package with the project's. Included by the Makefile.
# All clones share one in the cache, because it takes a minute to install.

AIRFLOW_VENV := .venvs/airflow
AIRFLOW_CACHED = $(CACHE)/airflow-$(shell { cat airflow_dags/requirements.txt airflow_dags/airflow.mk; $(PYTHON) -V; } | cksum | cut -d ' ' -f 1)

.PHONY: airflow
airflow:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is missing; install it first: apt-get install python3.11 python3.11-venv" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv; install it first: apt-get install python3-venv" >&2; exit 3; }
	@mkdir -p $(AIRFLOW_CACHED) $(dir $(AIRFLOW_VENV))
	@flock $(AIRFLOW_CACHED).lock $(MAKE) --no-print-directory $(AIRFLOW_CACHED)/.installed
	@ln -sfn $(AIRFLOW_CACHED) $(AIRFLOW_VENV)

$(AIRFLOW_CACHED)/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement airflow_dags/requirements.txt
	touch $@
