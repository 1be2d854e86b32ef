"""The Python of the YARN containers: one archive of what a task needs, made once per version and kept in a cache.

It is packed from the running environment: the files of the distributions that ringslice's core requires, and the
packages etl and mapreduce, laid out as a virtual environment that works wherever YARN unpacks it. So nothing is
installed on a node, and TensorFlow does not travel. Its ``bin/python`` is a link to the interpreter that this
environment stands on: a node must have that same Python at that same path, /usr/bin/python3.11 say. A site that has
not gives ``--python-bin``, a Python of the node's own with ringslice in it.

The same environment gives the same bytes. Byte code travels too, and is taken without a look at the sources' times:
it saves a task 0.6 s of its start.
"""

import argparse
import fnmatch
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import etl
from etl.errors import EnvironmentFailure, run_reporting

PACKER = 1  # another number where the same environment shall give another archive
ROOT = "ringslice"
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PACKAGES = (Path(etl.__file__).parent, Path(__file__).parent.parent)
NOT_FOR_TASKS = "etl/report"  # needs what the core does not
COMPRESSION_LEVEL = 1  # 81 MB in 5 s; level 6 takes 12 s for 72 MB, and both unpack in 2 s
KEPT_ARCHIVES = 3
STALE_S = 3600  # no packer works that long: its temporary folder is left over

_TEMPORARY = ".tmp"
_LEFT_OUT_FOLDERS = {"__pycache__", "docs", "include", "tests"}
_LEFT_OUT_SUFFIXES = (".a", ".c", ".cpp", ".h", ".hpp", ".pxd", ".pxi", ".pyc", ".pyi", ".pyx")
# below site-packages: what pip notes for itself, and large parts that no task needs
_LEFT_OUT = (
    "*.dist-info/INSTALLER",
    "*.dist-info/RECORD",
    "*.dist-info/REQUESTED",
    "*.dist-info/direct_url.json",
    "cv2/data/*",
    "numpy/distutils/*",
    "numpy/f2py/*",
    "pyarrow/_flight.*",
    "pyarrow/_pyarrow_cpp_tests.*",
    "pyarrow/_s3fs.*",
    "pyarrow/libarrow_flight*",
    "pyarrow/libarrow_python_flight*",
    "pyarrow/libarrow_s3*",
    "pyarrow/src/*",
)


@dataclass(frozen=True)
class Member:
    """A file of the archive: a copy of ``source``, or else ``content`` itself, or a link to ``link``.

    ``identity`` tells one content from another.
    """

    name: str
    identity: str
    source: Path | None = None
    content: bytes = b""
    link: str = ""

    def read(self) -> bytes:
        return self.content if self.source is None else _read(self.source)


def cached_archive(cache: Path | None = None) -> Path:
    """The archive of the running environment, a ``tar.gz`` named by its fingerprint; made where it is missing.

    Raises EnvironmentFailure where the environment cannot be packed.
    """
    folder = cache or _default_cache()
    members = describe()
    archive = folder / f"{fingerprint(members)}.tar.gz"
    try:
        os.utime(archive)  # in use: the last to be cleared away
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder, KEPT_ARCHIVES - 1)
        _make(archive, members)
    return archive


def check(archive: Path) -> str:
    """Unpack ``archive`` into a folder that is gone afterwards, and import the jobs with its Python alone.

    Returns a line about it. Raises EnvironmentFailure where a task could not start.
    """
    with tempfile.TemporaryDirectory(prefix="ringslice-python-") as folder:
        unpacking = ["tar", "-x", "-z", "-f", str(archive), "-C", folder]  # as YARN does it
        importing = [f"{folder}/bin/python", "-c", "import mapreduce.normalize, mapreduce.shard"]
        for words in (unpacking, importing):
            done = subprocess.run(words, cwd=folder, env={"PATH": os.defpath}, capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or [f"{words[0]} ended with {done.returncode}"])[-1]
                raise EnvironmentFailure(f"the Python for the cluster does not work: {said}; remove {archive}")
        python = os.readlink(f"{folder}/bin/python")
    return f"the archive ({archive.stat().st_size >> 20} MiB) imports the jobs; every node needs {python}"


def describe() -> list[Member]:
    """What goes into the archive, sorted by name, but for the byte code.

    Raises EnvironmentFailure where a distribution is missing or does not tell its files.
    """
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    settings = f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n"
    found = _closure()
    ours = found.pop(ROOT)
    about = f"{SITE}/{ROOT}-{ours.version}.dist-info/METADATA"
    members = [
        Member("bin/python", base, link=base),
        Member("bin/python3", "python", link="python"),
        _made_here("pyvenv.cfg", settings.encode()),
        _made_here(about, (ours.read_text("METADATA") or ours.read_text("PKG-INFO") or "").encode()),
    ]
    for name, distribution in found.items():
        members += _distribution_members(name, distribution)
    for package in PACKAGES:
        for path in [*package.rglob("*.py"), *package.rglob("py.typed")]:
            name = f"{package.name}/{path.relative_to(package)}"
            if not name.startswith(f"{NOT_FOR_TASKS}/"):
                # read once: what is packed is what was fingerprinted, whoever edits the source tree meanwhile
                members.append(_made_here(f"{SITE}/{name}", path.read_bytes()))
    return sorted({member.name: member for member in members}.values(), key=lambda member: member.name)


def fingerprint(members: list[Member] | None = None) -> str:
    """SHA-256, in hexadecimal, of all that decides the archive's bytes.

    An installed file counts with the hash that its installer noted: changing it by hand goes unnoticed.
    """
    told = [PACKER, COMPRESSION_LEVEL, platform.python_implementation(), platform.python_version()]
    described = [[member.name, member.identity] for member in members or describe()]
    return _sha256(json.dumps([told, described]).encode())


def _closure() -> dict[str, metadata.Distribution]:
    """The distributions that a task needs, by their normalised names: ringslice, what its core requires, and so on."""
    from packaging.requirements import Requirement  # here, for tasks import this module and need none of it
    from packaging.utils import canonicalize_name

    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    todo = [Requirement(ROOT)]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            found[name] = _installed(requirement.name, str(requirement))
        for extra in ["", *sorted(requirement.extras)]:
            if (name, extra) not in asked:
                asked.add((name, extra))
                needs = [Requirement(text) for text in found[name].requires or ()]
                todo += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return found


def _installed(name: str, requirement: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        remedy = "pip install -e . in its source tree" if name == ROOT else f"pip install '{requirement}'"
        raise EnvironmentFailure(
            f"cannot pack Python for the cluster: {name} is not installed in this environment ({remedy})"
        ) from None


def _distribution_members(name: str, distribution: metadata.Distribution) -> Iterator[Member]:
    files = distribution.files
    if files is None or distribution.read_text("RECORD") is None:
        raise EnvironmentFailure(
            f"cannot pack Python for the cluster: {name} does not tell its files (no RECORD; a package of the system?);"
            " install ringslice with pip into a virtual environment of its own"
        )
    if json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        raise EnvironmentFailure(
            f"cannot pack Python for the cluster: {name} is installed to be edited, its files lie elsewhere;"
            " install it with pip and without -e"
        )
    for file in files:
        path = str(file)
        if _is_needed(path):
            source = Path(str(distribution.locate_file(file)))
            identity = file.hash.value if file.hash else _sha256(_read(source))
            yield Member(f"{SITE}/{path}", identity, source)


def _is_needed(path: str) -> bool:
    """Whether a task may need this file, by its path below site-packages."""
    parts = path.split("/")
    if parts[0] in ("..", "") or path.endswith(_LEFT_OUT_SUFFIXES) or not _LEFT_OUT_FOLDERS.isdisjoint(parts[:-1]):
        return False
    return not any(fnmatch.fnmatchcase(path, pattern) for pattern in _LEFT_OUT)


def _read(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except FileNotFoundError:
        raise EnvironmentFailure(
            f"cannot pack Python for the cluster: {source} is missing; install its distribution again"
            " (pip install --force-reinstall)"
        ) from None


def _made_here(name: str, content: bytes) -> Member:
    return Member(name, _sha256(content), content=content)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _make(archive: Path, members: list[Member]) -> None:
    """Write ``archive``: it is there, whole, afterwards, and not there when this raises."""
    with tempfile.TemporaryDirectory(_TEMPORARY, dir=archive.parent) as folder:
        work = Path(folder)
        every = sorted([*members, *_byte_code(members, work / "code")], key=lambda member: member.name)
        unnamed = work / "archive"
        try:
            # neither a name nor a time in gzip's header
            with unnamed.open("wb") as file, gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, mtime=0) as packed:
                _write(packed, every)
            with unnamed.open("rb") as written:
                os.fsync(written.fileno())
        except OSError as error:
            error.filename = error.filename or str(archive)  # a full disk does not say where
            raise
        os.replace(unnamed, archive)


def _write(file: gzip.GzipFile, members: list[Member]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            entry = tarfile.TarInfo(member.name)  # of nobody, at time 0, mode 644
            if member.link:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, member.link, 0o777
                tar.addfile(entry)
            else:
                content = member.read()
                entry.size = len(content)
                if member.source and member.source.stat().st_mode & 0o100:
                    entry.mode = 0o755
                tar.addfile(entry, io.BytesIO(content))


def _byte_code(members: list[Member], work: Path) -> Iterator[Member]:
    """The byte code of every source, made in the new folder ``work``."""
    work.mkdir()
    for member in members:
        if member.name.endswith(".py"):
            copy = work / member.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(member.read())
    # a process of its own, with a fixed seed: byte code depends on what else its maker has in memory
    options = ("-qq", "--invalidation-mode", "unchecked-hash", "-s", str(work), str(work))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    made = subprocess.run(
        [sys.executable, "-S", "-m", "compileall", *options],
        cwd=work,
        env=kept | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    if made.returncode not in (0, 1):  # 1: some source is no Python, which matters to whoever imports it
        raise EnvironmentFailure(f"compiling Python for the cluster ended with {made.returncode}: {made.stderr[-500:]}")
    for path in work.rglob("*.pyc"):
        yield Member(path.relative_to(work).as_posix(), "", path)


def _default_cache() -> Path:
    told = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(told) if os.path.isabs(told) else Path.home() / ".cache") / ROOT / "python"


def _clear(folder: Path, kept: int) -> None:
    """Remove all archives but the ``kept`` used last, and what packers that were killed left behind."""
    by_age: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        try:
            used = path.stat().st_mtime
            if path.name.endswith(".tar.gz"):
                by_age.append((used, path))
            elif path.name.endswith(_TEMPORARY) and used < time.time() - STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            pass  # another process cleared it away
    for _, path in sorted(by_age)[: max(0, len(by_age) - kept)]:
        path.unlink(missing_ok=True)


def main() -> int:
    """Make the archive and print its path, or with ``--check`` a line about it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m mapreduce.jobs.python_archive",
        description="Make the Python of the YARN containers, where it is missing, and print its path.",
        epilog="example: python -m mapreduce.jobs.python_archive --check",
    )
    parser.add_argument("--check", action="store_true", help="import the jobs with it, unpacked")
    options = parser.parse_args()
    archive = cached_archive()
    print(check(archive) if options.check else archive, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting(main))
