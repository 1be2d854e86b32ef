# PyTorch, in an environment of its own. Included by the Makefile.
# It takes 6 GB, so all clones share one in the cache, without the project: what runs in it needs PYTHONPATH.

TORCH_VENV := .venvs/torch
TORCH_CACHED = $(CACHE)/torch-$(shell { cat setup.py; $(PYTHON) -V; } | cksum | cut -d ' ' -f 1)

.PHONY: torch
torch:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is missing; install it first: apt-get install python3.11 python3.11-venv" >&2; exit 3; }
	@mkdir -p $(TORCH_CACHED) $(dir $(TORCH_VENV))
	@flock $(TORCH_CACHED).lock $(MAKE) --no-print-directory $(TORCH_CACHED)/.installed
	@ln -sfn $(TORCH_CACHED) $(TORCH_VENV)

$(TORCH_CACHED)/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[torch]'
	$(@D)/bin/python -m pip uninstall --quiet --yes ringslice
	touch $@

# Without it, its tests are one error; all others run.
.PHONY: torch-for-tests
torch-for-tests:
	@$(MAKE) --no-print-directory torch || true
