"""The Python of the YARN containers: one archive of what a task needs, made once per version and kept in a cache.

It is packed from the running environment: the files of the distributions that ringslice's core requires, and the
packages etl and mapreduce, laid out as a virtual environment that works wherever YARN unpacks it. So nothing is
installed on a node, and TensorFlow does not travel. Its ``bin/python`` is a link to the interpreter that this
environment stands on: a node must have that same Python at that same path, /usr/bin/python3.11 say. A site that has
not gives ``--python-bin``, a Python of the node's own with ringslice in it.

The same environment gives the same bytes. Byte code travels too, and is used without a look at the sources' times: it
saves a task 0.5 s of processor time at its start.
"""

import fnmatch
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import etl
from etl.errors import EnvironmentFailure, run_reporting

PACKER = 2  # another number if the same environment is to give another archive
ROOT = "ringslice"
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PACKAGES = (Path(etl.__file__).parent, Path(__file__).parent.parent)
KEPT_ARCHIVES = 3
STALE_S = 3600  # no packer works that long: its temporary folder is left over

_TEMPORARY = ".tmp"
# below site-packages: what is for developers, what pip notes for itself, and large parts that no task needs
_EXCLUDED = (
    *("*/__pycache__/*", "*/docs/*", "*/include/*", "*/tests/*", "/../*"),
    *("*.a", "*.c", "*.cpp", "*.h", "*.hpp", "*.pxd", "*.pxi", "*.pyc", "*.pyi", "*.pyx"),
    *(f"/*.dist-info/{name}" for name in ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")),
    *("/cv2/data/*", "/numpy/distutils/*", "/numpy/f2py/*"),
    *(f"/pyarrow/{name}" for name in ("_flight.*", "_pyarrow_cpp_tests.*", "_s3fs.*", "src/*")),
    *(f"/pyarrow/lib{name}*" for name in ("arrow_flight", "arrow_python_flight", "arrow_s3")),
    "/etl/report/*",  # needs what the core does not
)


def cached_archive(cache: Path | None = None) -> Path:
    """The archive of the running environment, a ``tar.gz`` named by its fingerprint; made if it is missing.

    Raises EnvironmentFailure if the environment cannot be packed.
    """
    folder = cache or _default_cache()
    distributions, ours = required_distributions(), own_files()
    archive = folder / f"{fingerprint(distributions, ours)}.tar.gz"
    try:
        os.utime(archive)  # in use: the last to be cleared away
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        _make(archive, distributions, ours)
    return archive


def check(archive: Path) -> str:
    """Unpack ``archive`` into a folder that is gone afterwards, and import the jobs with its Python alone.

    Returns a line about it. Raises EnvironmentFailure if a task could not start.
    """
    with tempfile.TemporaryDirectory(prefix="ringslice-python-") as folder:
        failure = f"the Python for the cluster does not work; remove {archive}"
        _run(failure, "tar", "-x", "-z", "-f", archive, "-C", folder)  # as YARN does it
        _run(failure, f"{folder}/bin/python", "-c", "import mapreduce.normalize, mapreduce.shard")
        python = os.readlink(f"{folder}/bin/python")
    return f"the archive ({archive.stat().st_size >> 20} MiB) imports the jobs; every node needs {python}"


def _run(failure: str, *words: object) -> None:
    """Run a program without our environment. Raises EnvironmentFailure with its last line."""
    done = subprocess.run(list(map(str, words)), cwd="/", env={"PATH": os.defpath}, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"{words[0]} ended with {done.returncode}"])[-1]
        raise EnvironmentFailure(f"{failure}: {last}")


def own_files() -> dict[str, bytes]:
    """Our part of the archive, by name. It is read once: what is packed is what was fingerprinted, whoever edits it."""
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    ours = metadata.distribution(ROOT)
    about = f"{SITE}/{ROOT}-{ours.version}.dist-info/METADATA"
    files = {
        "bin/python": base.encode(),  # links
        "bin/python3": b"python",
        "pyvenv.cfg": f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n".encode(),
        about: (ours.read_text("METADATA") or ours.read_text("PKG-INFO") or "").encode(),
    }
    for package in PACKAGES:
        for path in sorted([*package.rglob("*.py"), *package.rglob("py.typed")]):
            name = f"{package.name}/{path.relative_to(package)}"
            if _is_needed(name):
                files[f"{SITE}/{name}"] = path.read_bytes()
    return files


def fingerprint(distributions: Sequence[metadata.Distribution], ours: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, of all that decides the archive's bytes.

    An installed file counts with the hash that its installer recorded: changing it by hand goes unnoticed.
    """
    contents = [[name, hashlib.sha256(data).hexdigest()] for name, data in ours.items()]
    records = sorted(str(each.read_text("RECORD")) for each in distributions)
    described = [PACKER, platform.python_implementation(), platform.python_version(), contents, records]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def required_distributions() -> list[metadata.Distribution]:
    """What the core of ringslice requires, and these in turn. Raises EnvironmentFailure if one cannot be packed."""
    from packaging.requirements import Requirement  # here, because tasks import this module and need none of it
    from packaging.utils import canonicalize_name

    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    todo = [Requirement(ROOT)]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            found[name] = _installed(name, str(requirement))
        for extra in {"", *requirement.extras}:
            if (name, extra) not in asked:
                asked.add((name, extra))
                needs = [Requirement(text) for text in found[name].requires or ()]
                todo += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    del found[ROOT]
    return list(found.values())


def _installed(name: str, requirement: str) -> metadata.Distribution:
    """An installed distribution. Raises EnvironmentFailure if it is missing, or its files are unknown."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        remedy = "pip install -e . in its source tree" if name == ROOT else f"pip install '{requirement}'"
        why = f"is not installed in this environment ({remedy})"
    else:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if name == ROOT:
            return found
        if origin.get("dir_info", {}).get("editable"):
            why = "is installed to be edited, its files lie elsewhere; install it with pip and without -e"
        elif found.files is None or found.read_text("RECORD") is None:
            why = (
                "does not tell its files (no RECORD; a package of the system?);"
                " install ringslice with pip into a virtual environment of its own"
            )
        else:
            return found
    raise EnvironmentFailure(f"cannot pack Python for the cluster: {name} {why}")


def _is_needed(path: str) -> bool:
    """Whether a task may need this file, by its path below site-packages."""
    return not any(fnmatch.fnmatchcase(f"/{path}", pattern) for pattern in _EXCLUDED)


def _make(archive: Path, distributions: Sequence[metadata.Distribution], ours: Mapping[str, bytes]) -> None:
    """Write ``archive``: it is there, whole, afterwards, and not there if this raises."""
    failure = "cannot pack Python for the cluster"
    with tempfile.TemporaryDirectory(_TEMPORARY, dir=archive.parent) as work:
        tree, unnamed = Path(work, "tree"), Path(work, "archive")
        for name, data in ours.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("bin/"):
                path.symlink_to(os.fsdecode(data))
            else:
                path.write_bytes(data)
        for source, path in _installed_files(distributions, tree / SITE):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy(source, path)
            except FileNotFoundError:
                raise EnvironmentFailure(
                    f"{failure}: {source} is missing; install its distribution again (pip install --force-reinstall)"
                ) from None
        # with a fixed seed, in a process of its own: byte code depends on what else its maker has in memory
        options = ("-qq", "--invalidation-mode", "unchecked-hash", "-s", tree, tree)
        compiling = [sys.executable, "-S", "-m", "compileall", *map(str, options)]
        # a source that is no Python matters only to whoever imports it
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run(compiling, cwd=tree, env=kept | {"PYTHONHASHSEED": "0"}, capture_output=True)
        unnamed.touch()
        whose = ("--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX")
        names = sorted(os.listdir(tree))
        _run(failure, "tar", *whose, "-I", "gzip -n -1", "-c", "-f", unnamed, "-C", tree, *names)
        with unnamed.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(unnamed, archive)


def _installed_files(distributions: Sequence[metadata.Distribution], site: Path) -> Iterator[tuple[Path, Path]]:
    """Each file that a task may need, and where it goes below ``site``."""
    for distribution in distributions:
        for file in distribution.files or ():
            if _is_needed(str(file)):
                yield Path(str(distribution.locate_file(file))), site / file


def _default_cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / ROOT / "python"


def _clear(folder: Path) -> None:
    """Leave room for one more archive beside those used last, and remove what packers that were killed left behind."""

    def last_use(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:  # another process cleared it away
            return 0.0

    for archive in sorted(folder.glob("*.tar.gz"), key=last_use)[: -KEPT_ARCHIVES + 1]:
        archive.unlink(missing_ok=True)
    for left in folder.glob(f"*{_TEMPORARY}"):
        if last_use(left) < time.time() - STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def main() -> int:
    """Make the archive and print its path, or with ``--check`` a line about it; returns the exit status."""
    archive = cached_archive()
    print(check(archive) if sys.argv[1:] == ["--check"] else archive, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting(main))
