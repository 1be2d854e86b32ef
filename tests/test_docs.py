"""The docs agree with the code: links and anchors resolve, options exist, command lines parse, Python imports exist.

Nothing is run and TensorFlow is not loaded.
"""

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

from etl.errors import UsageError
from etl.formats.example import CHANNELS, ENCODED, FORMAT, HEIGHT, KEY, LABEL, TEXT, WIDTH
from etl.formats.schemas import BLOCKS, CLASS_COUNTS, DEPARTED, EXAMPLES, IMAGES, REJECTS, REMOVED, ROWS
from etl.images.result import Reason
from mapreduce.cli import cli
from mapreduce.jobs.stage_job import StageJob, script_command
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.lib.commands import REPOSITORY
from train.config.run_options import command as train_command
from train.launch import command as launch_command
from train.read_bench import command as read_bench_command
from train.start import command as start_command
from train.start import with_data

MAX_README_LINES = 150
FORMAT_PAGE = REPOSITORY / "docs" / "format.md"
SCHEMA = "etl/slices/schemas/manifest.json"

PAGES = [page for folder in (".", "docs", "airflow_dags") for page in sorted((REPOSITORY / folder).glob("*.md"))]
# The changelog also names options and commands of earlier versions.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
PACKAGES = ("etl", "mapreduce", "train")

# Commands of others, and those of their long options that the docs use.
LAUNCHERS = ("horovodrun", "torchrun")
FOREIGN = (".", "airflow", "apt-get", "export", "ln", "pip", "tensorboard")
FOREIGN_OPTIONS = (
    *("--min-np", "--max-np", "--host-discovery-script", "--blacklist-cooldown-range", "--network-interface", "--gloo"),
    *("--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--conf", "--editable", "--logdir"),
)
JOBS: dict[str, type[StageJob]] = {f"mapreduce/{job.__name__.lower()}.py": job for job in (Normalize, Shard, Verify)}
TRAINERS: dict[str, click.Command] = {
    "train/main.py": train_command(lambda settings, monitor: None),
    **{
        f"train/{name}.py": import_module(f"train.{name}").command
        for name in ("evaluate", "export", "predict", "convert_weights", "promote")
    },
}
# Commands of `ringslice` that pass on what they do not know.
PASSING = {"train": "train/main.py"} | {name: f"train/{name}.py" for name in ("evaluate", "promote", "export")}

LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*(.*?)[ \t]*$\n?", re.MULTILINE)
COMMAND = re.compile(r"`ringslice ([a-z][a-z-]*)([^`]*)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
MAKE = re.compile(r"`make ([^`\s]+)`")
HEADING = re.compile(r"#{1,6} +(.+?) *#*")


Block = tuple[str, str]  # language and text


def split_page(text: str) -> tuple[str, list[Block]]:
    parts = FENCE.split(text)  # prose, language, block, what is behind its end, prose …
    assert len(parts) % 4 == 1, "a fenced block has no end"
    return "\n".join(parts[::4]), list(zip(parts[1::4], parts[2::4], strict=True))


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page, of several that are alike the first one's."""
    headings = filter(None, map(HEADING.fullmatch, split_page(text)[0].splitlines()))
    titles = (LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading[1]) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    """The relative links of a page, at its path, that lead to no file or to no heading."""
    broken = []
    for target in LINK.findall(split_page(text)[0]):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        is_there = file == page or file.exists()
        if not is_there or (anchor and anchor not in anchors_of(text if file == page else file.read_text())):
            broken.append(target)
    return broken


def test_the_recipes_name_what_exists() -> None:
    sources = (path.read_text() for top in (*PACKAGES, "tests") for path in (REPOSITORY / top).rglob("*.py"))
    words = {word for source in sources for word in re.findall(r"\w+", source)}
    named = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", (REPOSITORY / "CONTRIBUTING.md").read_text())
    assert [name for name in named if not words.issuperset(name.split("."))] == []


def click_flags(command: click.Command) -> set[str]:
    command = read_bench_command if command.name == "read-bench" else command
    shown = (each for each in command.params if not getattr(each, "hidden", False))
    flags = {flag for each in shown for flag in [*each.opts, *each.secondary_opts]}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return flags.union({"--help"}, *map(click_flags, below))


@cache
def script_flags(path: Path) -> frozenset[str]:
    """The options that a script declares, read from its source; benchmarks share some."""
    sources = [path, *path.parent.glob("lib/command.py")]
    return frozenset({"--help", *re.findall(r'"(--[a-z-]+)', "".join(source.read_text() for source in sources))})


@cache
def own_flags() -> frozenset[str]:
    commands = (cli, start_command, *TRAINERS.values(), *map(script_command, JOBS.values()))
    return frozenset().union(*map(click_flags, commands))


@cache
def known_options() -> frozenset[str]:
    flags = own_flags() | click_flags(launch_command) | set(FOREIGN_OPTIONS)
    for job in JOBS.values():
        flags |= set(job.of_words("ROOT").arg_parser._option_string_actions)  # mrjob's
    scripts = [*(REPOSITORY / "benchmarks").glob("*.py"), *(REPOSITORY / "tests").rglob("__main__.py")]
    for script in [*scripts, REPOSITORY / "train/toolchain/build_horovod.py"]:
        flags |= script_flags(script)
    return frozenset(flag for flag in flags if flag.startswith("--"))


def unknown_options(text: str) -> list[str]:
    return [option for option in OPTION.findall(text) if option not in known_options()]


def undocumented(text: str) -> list[str]:
    """The options of this project's commands, and the subcommands of `ringslice`, that a text does not name."""
    named = set(OPTION.findall(text)) | {"--version"}
    left = {flag for flag in own_flags() if flag.startswith("--") and not flag.startswith("--no-")} - named
    return sorted(left) + [name for name in cli.commands if not re.search(rf"ringslice {name}\b(?!-)", text)]


def test_every_option_and_command_is_documented() -> None:
    assert not undocumented("".join(page.read_text() for page in CURRENT))


def field_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from field_names(inner)


def undescribed_names(text: str) -> list[str]:
    """The columns, features and reasons of the formats that a text does not name as code."""
    schemas = (IMAGES, REMOVED, ROWS, REJECTS, EXAMPLES, DEPARTED, BLOCKS, CLASS_COUNTS)
    columns = {column for schema in schemas for column in schema.names}
    features = {ENCODED, FORMAT, HEIGHT, WIDTH, CHANNELS, LABEL, TEXT, KEY}
    fields = set(field_names(json.loads((REPOSITORY / SCHEMA).read_text())))
    named = set(re.findall(r"`([^`]+)`", text))
    return sorted((columns | features | fields) - named)


def test_the_formats_and_the_reasons_of_rejects_are_described() -> None:
    assert not undescribed_names(FORMAT_PAGE.read_text())
    named = set(re.findall(r"`([^`]+)`", (REPOSITORY / "docs/images.md").read_text()))
    assert {reason.value for reason in Reason} <= named


@cache
def make_targets() -> frozenset[str]:
    files = [REPOSITORY / "Makefile", *REPOSITORY.glob("*/*.mk"), *REPOSITORY.glob("*/*/*.mk")]
    declared = re.findall(r"^\.PHONY: (.+)$", "\n".join(each.read_text() for each in files), re.MULTILINE)
    return frozenset(" ".join(declared).split())


def check_click(command: click.Command, name: str, words: Sequence[str], group: click.Context | None = None) -> None:
    """Parse ``words`` as the command, or the subcommand that they name, does; nothing is invoked."""
    if command is read_bench_command:
        words = words[1:]
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise UsageError(f"{name} has no command {words[0]}")
        check_click(command.commands[words[0]], f"{name} {words[0]}", words[1:], click.Context(command))
        return
    with suppress(click.exceptions.Exit):  # --help or --version
        command.make_context(name.rpartition(" ")[2], list(words), group)


def check_script(name: str, words: Sequence[str]) -> None:
    """Require that the script exists and declares the options that it is given."""
    if not (REPOSITORY / name).exists():
        raise UsageError(f"there is no {name}")
    if unknown := {word.partition("=")[0] for word in words if word.startswith("--")} - script_flags(REPOSITORY / name):
        raise UsageError(f"{name} has no {', '.join(sorted(unknown))}")


def find_program(words: Sequence[str]) -> Sequence[str]:
    """The program behind Python or a launcher, as a path in the repository, and its words."""
    if words[0] in LAUNCHERS:
        position = next((number for number, word in enumerate(words) if word in TRAINERS), None)
        if position is None:
            raise UsageError(f"{words[0]} runs no trainer in {shlex.join(words)}")
        return words[position:]
    if words[:2] == ["python", "-m"]:
        path = words[2].replace(".", "/")
        return [f"{path}/__main__.py" if (REPOSITORY / path).is_dir() else f"{path}.py", *words[3:]]
    return words[1:] if words[0] == "python" else words


def check_command(line: str) -> None:
    """Raise UsageError or a click.ClickException if its command would refuse the line, or if it is of no known one."""
    head, *rest = find_program(shlex.split(line, comments=True))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RINGSLICE_")}
    with mock.patch.dict(os.environ, variables, clear=True):  # options leave settings there
        if head == "make":
            if unknown := {word for word in rest if not {"=", "/"} & {*word}} - make_targets():
                raise UsageError(f"make has no target {', '.join(unknown)}")
        elif head == "ringslice" and rest[:1] and rest[0] in PASSING:
            passed = start_command.commands[rest[0]].make_context(head, rest[1:]).params["words"]
            check_click(TRAINERS[PASSING[rest[0]]], head, with_data(passed))
        elif head == "ringslice":
            check_click(read_bench_command if rest[:1] == ["read-bench"] else cli, head, rest)
        elif head in TRAINERS:
            check_click(TRAINERS[head], head, rest)
        elif head in JOBS:
            JOBS[head].of_words(*script_command(JOBS[head]).make_context(head, list(rest)).params["words"])
        elif head.endswith(".py"):
            check_script(head, rest)
        elif head not in FOREIGN:
            raise UsageError(f"{head} is not a command that is known here")


def command_lines(blocks: Sequence[Block]) -> Iterator[str]:
    for text in (text for language, text in blocks if language == "sh"):
        joined = re.sub(r"\\\n\s*", " ", text)
        yield from (line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def wrong_commands(text: str) -> list[str]:
    """The command lines of a page that would be refused, and commands and make's targets in its prose that are none."""
    prose, blocks = split_page(text)
    wrong = []
    for name, rest in COMMAND.findall(prose):
        known = click_flags(cli.commands[name]) if name in cli.commands else set()
        if name in PASSING:
            known = click_flags(start_command.commands[name]) | click_flags(TRAINERS[PASSING[name]])
        if name not in cli.commands or not known.issuperset(OPTION.findall(rest)):
            wrong.append(f"ringslice {name}{rest}")
    for line in [*command_lines(blocks), *(f"make {target}" for target in MAKE.findall(prose))]:
        try:
            check_command(line)
        except (UsageError, click.ClickException) as error:
            wrong.append(f"{line}: {error}")
    return wrong


def missing_imports(code: str) -> list[str]:
    """The names that Python code imports from this project and that no module defines."""
    missing = []
    for node in ast.parse(code).body:
        if not isinstance(node, ast.ImportFrom) or str(node.module).split(".")[0] not in PACKAGES:
            continue
        path = REPOSITORY / f"{str(node.module).replace('.', '/')}.py"
        text = path.read_text() if path.exists() else ""
        defined = {each.name for each in ast.parse(text).body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
        missing += [f"{node.module}.{name.name}" for name in node.names if name.name not in defined]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_page_names_exists(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    assert not broken_links(page, text)
    for language, code in split_page(text)[1]:
        if language == "python":
            assert not missing_imports(code)
        elif language == "toml":  # a file that the command lines of the page name
            Path(code.splitlines()[0].lstrip("# ")).write_text(code)
    if page in CURRENT:
        assert not unknown_options(text)
        assert not wrong_commands(text)


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= MAX_README_LINES


WRONG = """# Own

[x](gone.md) [x](README.md#gone) [x](#other) `--sise` `ringslice normalise --size 8` `make tea`

1. x
   ```sh
   ringslice shard data/flowers --workers 8  # fine
   ringslice shard data/flowers --workers none
   ringslice pipeline photos data/flowers \\
       --sise 224
   python mapreduce/normalize.py -r local --size 224
   python -m tests.gone OUT
   horovodrun -np 2 train/main.py --epochs few
   horovodrun -np 2 train/loop.py
   train/evaluate.py --epochs 3
   ringslicer --help
   ```
"""


def test_each_check_finds_mistakes() -> None:
    assert broken_links(REPOSITORY / "page.md", WRONG) == ["gone.md", "README.md#gone", "#other"]
    assert unknown_options(WRONG) == ["--sise", "--sise"]
    assert len(wrong_commands(WRONG)) == 10
    code = "from etl.errors import DataError, Gone\nfrom etl.gone import x\n"
    assert missing_imports(code) == ["etl.errors.Gone", "etl.gone.x"]
    text = FORMAT_PAGE.read_text()
    assert undescribed_names(text.replace("`source_format`", "")) == ["source_format"]
    assert {"--skip-limit", "doctor"} <= set(undocumented(text))
