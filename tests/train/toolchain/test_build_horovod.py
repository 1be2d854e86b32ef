"""The cache of what is built, and installs at the same time."""

import argparse
import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.commands import PATIENCE_S, REPOSITORY, environment, run, succeeded
from train.toolchain.build_horovod import add_cache_option


@pytest.mark.integration
@pytest.mark.parametrize("variables", [{}, {"HOME": "/elsewhere"}, {"HOME": "/elsewhere", "XDG_CACHE_HOME": "/cache"}])
def test_make_and_the_builds_have_one_cache(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_cache_option(parser, "wheels")
    words = ["env", "-i", f"PATH={os.environ['PATH']}", *(f"{name}={value}" for name, value in variables.items())]
    result = succeeded(run(*words, "make", "--dry-run", "--always-make", "install", cwd=REPOSITORY)).stdout
    assert result.count(f'--cache "{parser.parse_args([]).cache}"') == 2


STAND_IN = """#!/bin/sh
case "$*" in -c*) exit ;; esac
echo begin >> {log}; sleep 0.1; echo end >> {log}
case "$*" in "-m venv"*) mkdir -p {venv}/bin; cp "$0" {venv}/bin/python ;; esac
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("variable", "target", "commands"), [("VENV", "install", 5), ("AIRFLOW_VENV", "{venv}/.installed", 2)]
)
def test_two_makes_in_one_clone_install_once(variable: str, target: str, commands: int, tmp_path: Path) -> None:
    venv, log, python = tmp_path / "venvs/own", tmp_path / "log", tmp_path / "python"
    python.write_text(STAND_IN.format(log=log, venv=venv))
    python.chmod(0o755)
    words = ["make", f"{variable}={venv}", f"PYTHON={python}", target.format(venv=venv)]
    makes = [subprocess.Popen(words, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [make.wait(PATIENCE_S) for make in makes] == [0, 0]
    assert log.read_text().split() == ["begin", "end"] * commands
