# torchvision and tfrecord, peers of benchmarks/torch_input.py, in an environment of their own that also has the packages
# of PyTorch's. Included by the Makefile.

TORCH_PEERS_VENV := .venvs/torch-peers
TORCH_PEERS_INSTALLED := $(TORCH_PEERS_VENV)/.installed

.PHONY: torch-peers
torch-peers: torch
	@$(MAKE) --no-print-directory $(TORCH_PEERS_INSTALLED)

$(TORCH_PEERS_INSTALLED): benchmarks/peers/torch_peers.txt
	test -x $(TORCH_PEERS_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_PEERS_VENV)
	realpath $(TORCH_VENV)/lib/python3*/site-packages > $$(echo $(TORCH_PEERS_VENV)/lib/python3*/site-packages)/torch.pth
	$(TORCH_PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@
