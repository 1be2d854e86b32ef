"""The Python of the YARN containers: one archive of what a task needs, made once per version and kept in a cache.

It is packed from the running environment: the files of the distributions that ringslice's core requires, and the
packages etl and mapreduce, laid out as a virtual environment that works wherever YARN unpacks it. So nothing is
installed on a node, and TensorFlow is not sent. Its ``bin/python`` is a link to the interpreter of this environment: a
node must have the same Python at the same path, for example /usr/bin/python3.11. A site that does not have it gives
``--python-bin``, a Python of the nodes with ringslice.

Byte code is packed, too, and used without a look at the sources' times: it saves a task 0.5 s of processor time.
"""

import fnmatch
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import etl
from etl.errors import EnvironmentFailure

PACKER_VERSION = 3  # part of the fingerprint
ROOT = "ringslice"
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PACKAGES = (Path(etl.__file__).parent, Path(__file__).parent.parent)
KEPT_ARCHIVES = 3
STALE_S = 3600  # a temporary folder of this age was left by a process that was killed

_FAILURE = "cannot pack Python for the cluster"
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
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        raise EnvironmentFailure(f"{_FAILURE}: this user has no home; set XDG_CACHE_HOME to a folder") from None
    folder = cache or base / ROOT / "python"
    distributions, ours = required_distributions(), own_files()
    archive = folder / f"{fingerprint(distributions, ours)}.tar.gz"
    try:
        os.utime(archive)  # used now: the last to be deleted
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        _delete_old(folder)
        _make(archive, {**ours, **dict(_installed_files(distributions))})
    return archive


def own_files() -> dict[str, bytes]:
    """The content of our part of the archive, by name: read once, so that what is packed is what was fingerprinted."""
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
    described = [PACKER_VERSION, platform.python_implementation(), platform.python_version(), contents, records]
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
        raise EnvironmentFailure(f"{_FAILURE}: {name} is not installed in this environment ({remedy})") from None
    is_editable = json.loads(found.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable")
    if name != ROOT and (is_editable or not found.files or found.read_text("RECORD") is None):
        reason = "is installed to be edited" if is_editable else "has no list of its files (a package of the system?)"
        raise EnvironmentFailure(
            f"{_FAILURE}: {name} {reason}; install it with pip, without -e, into a virtual environment"
        )
    return found


def _installed_files(distributions: Sequence[metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Each file that a task may need, by its name in the archive."""
    for distribution in distributions:
        for file in distribution.files or ():
            if _is_needed(str(file)):
                yield f"{SITE}/{file}", Path(str(distribution.locate_file(file)))


def _is_needed(path: str) -> bool:
    """True if a task may need this file, by its path below site-packages."""
    return not any(fnmatch.fnmatchcase(f"/{path}", pattern) for pattern in _EXCLUDED)


def _make(archive: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write ``archive`` of these contents, or of the files at these paths, by name; nothing is left if this raises."""
    with tempfile.TemporaryDirectory(_TEMPORARY, dir=archive.parent) as work:
        tree, unfinished = Path(work, "tree"), Path(work, "archive")
        for name, content in files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("bin/"):
                path.symlink_to(os.fsdecode(content))
            elif isinstance(content, bytes):
                path.write_bytes(content)
            elif content.exists():
                shutil.copy(content, path)
            else:
                remedy = "install its distribution again (pip install --force-reinstall)"
                raise EnvironmentFailure(f"{_FAILURE}: {content} is missing; {remedy}")
        # only who imports a source that does not compile needs it to
        compiling = (sys.executable, "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash")
        subprocess.run([*compiling, "-s", tree, tree], capture_output=True)
        with unfinished.open("wb") as output:
            with tarfile.open(fileobj=output, mode="w:gz", compresslevel=1) as tar:
                for entry in tree.iterdir():
                    tar.add(entry, entry.name)
            output.flush()
            os.fsync(output.fileno())
        os.replace(unfinished, archive)


def _delete_old(folder: Path) -> None:
    """Leave room for one more archive beside those used last, and delete what processes that were killed left."""
    with suppress(FileNotFoundError):  # another process deletes, too
        for archive in sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)[: -KEPT_ARCHIVES + 1]:
            archive.unlink()
        for left in folder.glob(f"*{_TEMPORARY}"):
            if left.stat().st_mtime < time.time() - STALE_S:
                shutil.rmtree(left, ignore_errors=True)
