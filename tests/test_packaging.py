"""What is built and installed: every package, every data file, and the links that serve type checkers."""

import ast
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LINKED = ("analyzers", "kernels", "reports")


def _literal(start: str) -> list[str]:
    """Return the list that follows ``start``; Python 3.10 has no TOML parser, and our lists are Python's too."""
    text = PYPROJECT[PYPROJECT.index(start) + len(start) :]
    value = ast.literal_eval(text[text.index("[") : text.index("]") + 1])
    assert isinstance(value, list)
    return value


def _package_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parent.parts
    return ".".join(parts if parts[0] == "diagnose" else ("diagnose", *parts))


def _source_files(pattern: str) -> list[Path]:
    folders = [ROOT / name for name in ("diagnose", *LINKED)]
    found = [path for folder in folders for path in folder.rglob(pattern)]
    return [path for path in found if not any(parent.is_symlink() for parent in path.parents)]


def test_every_folder_with_python_files_is_listed_as_a_package():
    folders = {_package_of(path) for path in _source_files("*.py")}
    assert sorted(folders) == sorted(_literal("\npackages ="))


def test_every_package_has_an_init():
    for package in _literal("\npackages ="):
        assert (_folder(package) / "__init__.py").is_file(), package


def test_every_data_file_is_matched_by_package_data():
    table = PYPROJECT[PYPROJECT.index("[tool.setuptools.package-data]") :].split("\n\n")[0]
    patterns = dict(re.findall(r'^"?([\w.]+)"? = (\[.*\])$', table, re.MULTILINE))
    for path in _source_files("*"):
        if path.is_dir() or path.suffix in {".py", ".pyc"}:
            continue
        package = next(name for name in _nearest(path) if name in patterns)
        inside = path.relative_to(_folder(package))
        assert any(inside.match(pattern) for pattern in ast.literal_eval(patterns[package])), path


def _folder(package: str) -> Path:
    parts = package.split(".")
    return ROOT.joinpath(*(parts[1:] if parts[1:2] and parts[1] in LINKED else parts))


def _nearest(path: Path) -> list[str]:
    name = _package_of(path).split(".")
    return [".".join(name[:end]) for end in range(len(name), 0, -1)]


@pytest.mark.parametrize("name", LINKED)
def test_the_links_lead_to_the_root_folders(name):
    link = ROOT / "diagnose" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_what_is_installed_here_is_this_tree():
    code = "import diagnose, diagnose.reports, pathlib; print(pathlib.Path(diagnose.reports.__file__).resolve())"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/").stdout
    assert Path(shown.strip()) == ROOT / "reports" / "__init__.py"


def test_every_version_that_the_scripts_install_is_pinned():
    pinned = {
        re.split(r"[=;]", line)[0].lower().replace("-", "_")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    for requirement in requires("torch-diagnose") or ():
        if "extra ==" in requirement and 'extra == "dev"' not in requirement:
            continue
        name = re.split(r"[<>=!;\[ ]", requirement)[0].lower()
        assert name.replace("-", "_") in pinned, f"{name} has no line in constraints.txt"
