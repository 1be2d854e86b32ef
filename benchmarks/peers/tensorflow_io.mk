# tensorflow-io, a peer of benchmarks/reader.py, in an environment of its own with the TensorFlow it was built for.
# Included by the Makefile.

TFIO_VENV := .venvs/tfio
TFIO_INSTALLED := $(TFIO_VENV)/.installed

.PHONY: tensorflow-io
tensorflow-io: $(TFIO_INSTALLED)

$(TFIO_INSTALLED): benchmarks/peers/tensorflow_io.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is missing; install it first: apt-get install python3.11 python3.11-venv" >&2; exit 3; }
	test -x $(TFIO_VENV)/bin/python || $(PYTHON) -m venv $(TFIO_VENV)
	$(TFIO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@
