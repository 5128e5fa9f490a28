"""A folder of wheels that serves as an index: the wheel of this tree, and stand-ins for the packages that it names.

A stand-in has the name and the version of constraints.txt, and no modules. That of torch makes the packages of the
environment at hand importable, after those that are installed: so what was installed runs, and nothing is downloaded.
setuptools is the one at hand, in a wheel again: it builds.
"""

import re
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HERE = Path(sysconfig.get_path("purelib"))
OF_DIAGNOSE = ("torch_diagnose", "__editable__")  # what this tree has there


def pins() -> dict[str, str]:
    """Return the pinned version of each package, for the Python at hand."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        canonicalize_name(pin.name): re.sub("^==", "", str(pin.specifier))
        for pin in pinned
        if pin.marker is None or pin.marker.evaluate()
    }


def requirements(wheel: Path) -> list[Requirement]:
    """Return what the wheel asks for, with and without extras."""
    with zipfile.ZipFile(wheel) as archive:
        text = next(archive.read(name) for name in archive.namelist() if name.endswith("/METADATA")).decode()
    return [Requirement(line) for line in re.findall("^Requires-Dist: (.+)$", text, re.MULTILINE)]


def asked_for(needed: list[Requirement], extras: set[str]) -> set[str]:
    """Return the names of the packages that are installed with these extras."""
    names = set()
    for one in needed:
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            names.add(canonicalize_name(one.name))
    return names


def make_index(folder: Path, needed: list[Requirement], others: Iterable[str]) -> None:
    """Write a stand-in for each package that the wheel names, and for others, and a wheel of setuptools."""
    pinned = pins()
    names = {canonicalize_name(one.name) for one in needed} | set(others)
    modules = folder / "modules"
    modules.mkdir()
    for path in HERE.iterdir():
        if not path.name.startswith(OF_DIAGNOSE):
            (modules / path.name).symlink_to(path)
    for name in names - {"torch-diagnose", "setuptools"}:
        make_wheel(
            folder,
            name,
            pinned.get(name, "9999"),
            {"stand_ins.pth": f"{modules}\n".encode()} if name == "torch" else {},
        )
    files = {str(path): path.read_binary() for path in metadata.files("setuptools") or () if path.suffix != ".pyc"}
    make_wheel(folder, "setuptools", metadata.version("setuptools"), files)


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    """Write a wheel of some files into a folder."""
    stem = f"{name.replace('-', '_')}-{version}"
    described = f"{stem}.dist-info"
    content = {
        f"{described}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{described}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **files,
    }
    content[f"{described}/RECORD"] = "".join(f"{path},,\n" for path in (*content, f"{described}/RECORD")).encode()
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
