# img2dataset, a peer of benchmarks/normalize.py, in an environment of its own. Included by the Makefile.

IMG2DATASET_VENV := .venvs/img2dataset
IMG2DATASET_INSTALLED := $(IMG2DATASET_VENV)/.installed

.PHONY: img2dataset
img2dataset: $(IMG2DATASET_INSTALLED)

$(IMG2DATASET_INSTALLED): benchmarks/peers/img2dataset.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is missing; install it first: apt-get install python3.11 python3.11-venv" >&2; exit 3; }
	test -x $(IMG2DATASET_VENV)/bin/python || $(PYTHON) -m venv $(IMG2DATASET_VENV)
	$(IMG2DATASET_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@
