# Everything for one machine. `make demo` and `make test` set up what they need.

# Without HOME (cron, systemd, a container) a user's home is the one of the machine's list of users, as for Python.
HOME_FOLDER = $(or $(HOME),$(shell getent passwd "$$(id -u)" | cut -d: -f6))
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME_FOLDER)/.cache)/ringslice
override CACHE := $(if $(filter /%,$(CACHE)),$(CACHE),$(CURDIR)/$(CACHE))
PYTHON ?= $(shell for each in python3.11 python3.12 python3; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && { echo $$each; break; }; done)
# GPU=1 is an environment of its own: TensorFlow with its CUDA packages, and Horovod built for them
VENV := $(if $(GPU),.venvs/gpu,.venv)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := data/digits

.PHONY: help demo test test-unit test-all check chaos same-bytes bench format install clean
.PHONY: hadoop-up hadoop-down hadoop-status
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

include airflow_dags/airflow.mk
include benchmarks/peers/img2dataset.mk
include benchmarks/peers/tensorflow_io.mk
include train/torch_backend/torch.mk
include benchmarks/peers/torch_peers.mk

help:
	@echo "make demo     the whole job on 1,797 real images: ingest, normalize, shard, verify, train on 2 ranks"
	@echo "make test     the unit tests, and one real proof of every guarantee: Hadoop, Horovod, Airflow; 6 to 11 minutes on 2 cores"
	@echo "make test-unit  the unit tests alone, in process; 2 to 4 minutes"
	@echo "make test-all   every test but the exhaustive ones; 20 to 30 minutes"
	@echo "make check    lint, format, imports and types"
	@echo "make chaos    the slow tests: every kill point, 10,000 damaged images and containers"
	@echo "make same-bytes BASE=COMMIT  whether the stages of COMMIT and of this tree leave the same bytes; 1 minute"
	@echo "make hadoop-up, hadoop-status, hadoop-down  a real single-node Hadoop on this machine, to try things on"
	@echo "make bench    all benchmarks in a short form, in less than 10 minutes; one table (HDFS: BENCH='--hdfs URI')"
	@echo "make img2dataset    a peer of benchmarks/normalize.py, in .venvs/img2dataset"
	@echo "make tensorflow-io  a peer of benchmarks/reader.py, in .venvs/tfio"
	@echo "make torch-peers    peers of benchmarks/torch_input.py, beside make torch, in .venvs/torch-peers"
	@echo "make install  the environment alone: .venv, with Horovod and the reader's native op built for its TensorFlow"
	@echo "make install GPU=1  an environment for GPUs: .venvs/gpu, with TensorFlow's CUDA packages and Horovod with NCCL"
	@echo "make torch  PyTorch without ringslice, for tests and benchmarks (with PYTHONPATH=.): .venvs/torch, 6 GB in the cache"
	@echo "make airflow  an Airflow to try the DAGs with: .venvs/airflow, 0.3 GB in the cache"
	@echo "make clean    remove the environment and the demo's data; caches under $(CACHE) stay"

demo: $(INSTALLED)
	$(BIN)/python -m tests.lib.digits data/sources/digits
	$(BIN)/ringslice pipeline data/sources/digits $(DEMO) --size 28 --color gray --format png --pack-size 32KB --workers 8
	PATH="$(CURDIR)/$(BIN):$$PATH" horovodrun -np 2 train/main.py --data $(DEMO) --run demo --resume --recipe digits
	@echo "Next: . $(BIN)/activate, then: horovodrun -np 8 train/main.py, or ringslice report $(DEMO)/runs/demo"

PYTEST := $(BIN)/python -m pytest
# Compiled modules are kept: a suite starts a thousand processes, each of which would compile ours anew
test test-unit test-all chaos: export PYTHONDONTWRITEBYTECODE :=
WORKERS := -n 3 --dist loadgroup --no-loadscope-reorder
UNIT := not (integration or hadoop or chaos)

test-unit: $(INSTALLED)
	$(PYTEST) -m "$(UNIT) and not witness" $(WORKERS) $(TESTS)

test: $(INSTALLED) airflow torch-for-tests
	$(PYTEST) -m "witness or $(UNIT)" $(WORKERS) --durations 20 $(TESTS)

test-all: $(INSTALLED) airflow torch-for-tests
	$(PYTEST) -m "not chaos" $(WORKERS) --durations 40 $(TESTS)

chaos: $(INSTALLED) airflow torch-for-tests
	$(PYTEST) -m chaos $(TESTS)

same-bytes: $(INSTALLED)
	$(BIN)/python -m tests.same_bytes $(BASE)

bench: $(INSTALLED)
	$(BIN)/python benchmarks/all.py $(BENCH)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED)

hadoop-up hadoop-down hadoop-status: hadoop-%: $(INSTALLED)
	$(BIN)/python -m tests.hadoop $*

INSTALLED_FROM := setup.py pyproject.toml $(wildcard train/toolchain/*.py) train/toolchain/native/records_op.cc

# Of two makes in one clone one installs, and the other waits, then finds it done.
ifndef UNDER_INSTALL_LOCK
$(INSTALLED): $(INSTALLED_FROM)
	@mkdir -p $(dir $(VENV)) && flock $(VENV).lock $(MAKE) --no-print-directory UNDER_INSTALL_LOCK=1 $@
else
$(INSTALLED): $(INSTALLED_FROM)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is missing; install it first: apt-get install python3.11 python3.11-venv" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv; install it first: apt-get install python3-venv" >&2; exit 3; }
	@command -v g++ >/dev/null || { echo "a C++ compiler is missing; install it first: apt-get install g++" >&2; exit 3; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "setuptools<81" wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[$(if $(GPU),gpu,train),report,dev]'
	$(BIN)/python train/toolchain/build_horovod.py $(if $(GPU),--gpu) --cache "$(CACHE)"
	$(BIN)/python -m train.toolchain.build_records_op --cache "$(CACHE)"
	touch $@
endif

clean:
	rm -rf $(VENV) $(VENV).lock data/digits data/sources/digits
