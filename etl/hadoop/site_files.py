"""The XML of a site's files as Hadoop's own clients read it: properties, XInclude, and ``${…}`` in values."""

import os
import pwd
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from etl.errors import EnvironmentFailure

MAX_INCLUDES = 100  # files that one site file includes, directly or not
MAX_SUBSTITUTIONS = 20  # in one value; Hadoop's own limit

_XINCLUDE = "{http://www.w3.org/2001/XInclude}"
_VARIABLE = re.compile(r"\$\{([^}$ ]+)\}")
_ENVIRONMENT = re.compile(r"env\.([^-:]+)(?:(:?-)(.*))?")


def read_site_file(path: Path) -> dict[str, str]:
    """The properties of one site file, with those of the files it includes; the last of a name wins.

    Raises EnvironmentFailure for a file that is not XML, and an include that is not there and has no fallback.
    """
    return _properties(path, _parse(path), [0])


def resolve(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with their ``${…}`` replaced: Java's system properties, ``env.NAME``, then other properties.

    As in Hadoop, what has no value stays, and so does a value that leads back to itself.
    """
    return {name: _resolved(value, properties) for name, value in properties.items()}


def _parse(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(path).getroot()  # noqa: S314 - the site's own file, as trusted as its programs
    except ElementTree.ParseError as error:
        raise EnvironmentFailure(f"{path} is not XML ({error}); mend it, or set HADOOP_CONF_DIR to another") from None


def _properties(path: Path, parent: ElementTree.Element, included: list[int]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in parent:
        if each.tag == f"{_XINCLUDE}include":
            found |= _included(path, each, included)
        elif each.tag == "property":
            name, value = each.findtext("name"), each.findtext("value")
            if name and value is not None:
                found[name.strip()] = value.strip()
        else:  # a configuration may hold another one
            found |= _properties(path, each, included)
    return found


def _included(path: Path, include: ElementTree.Element, included: list[int]) -> dict[str, str]:
    """What an include stands for: the properties of its file, or of its fallback where there is no such file."""
    included[0] += 1
    if included[0] > MAX_INCLUDES:
        raise EnvironmentFailure(f"{path} includes itself, or more than {MAX_INCLUDES} files; mend its xi:include")
    href = include.get("href", "")
    file = path.parent / (unquote(href.removeprefix("file:")) if href.startswith("file:/") else href)
    if href and file.is_file():
        return _properties(file, _parse(file), included)
    fallback = include.find(f"{_XINCLUDE}fallback")
    if fallback is None:
        raise EnvironmentFailure(
            f"{path} includes {href!r}, which is no file of this machine; copy it there, or mend the xi:include"
        )
    return _properties(path, fallback, included)


def _resolved(value: str, properties: Mapping[str, str]) -> str:
    text = value
    for _ in range(MAX_SUBSTITUTIONS):
        variable = _VARIABLE.search(text)
        if variable is None:
            return text
        replacement = _value_of(variable[1], properties)
        if replacement is None:
            return text
        if variable[0] in replacement:  # a loop
            return value
        text = text[: variable.start()] + replacement + text[variable.end() :]
    return value


def _value_of(name: str, properties: Mapping[str, str]) -> str | None:
    if variable := _ENVIRONMENT.fullmatch(name):
        found = os.environ.get(variable[1])
        if found is None or (not found and variable[2] == ":-"):
            found = variable[3]
        if found is not None:
            return found
    system = _system_property(name)
    return properties.get(name) if system is None else system


def _system_property(name: str) -> str | None:
    """Those of Java's system properties that a site's files use, and that are the same in any program."""
    if name == "java.io.tmpdir":
        return tempfile.gettempdir()
    if name == "user.dir":
        return os.getcwd()
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:  # a container's user may have no name
        return None
    return {"user.name": user.pw_name, "user.home": user.pw_dir}.get(name)
