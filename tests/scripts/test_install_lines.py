"""Every printed install line is run in a fresh environment, against an index of the wheel that this tree builds."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import package
import pytest

from tests.scripts.local_index import asked_for, make_index, make_wheel, requirements
from tests.scripts.printed_lines import printed_lines

ROOT = Path(__file__).parents[2]
LINES = printed_lines()
INSTALL = "pip install "
RUNNERS = {"uv": "uv==0.13.8", "pipx": "pipx==1.18.4"}
PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "training"
version = "1"
[tool.setuptools]
packages = ["ours"]
"""
TRACE = ROOT / "fixtures" / "traces" / "slow_dataset-planted"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Return the folder of the wheels, and what that of this tree asks for."""
    folder = tmp_path_factory.mktemp("index")
    wheel, _ = package.build(tmp_path_factory.mktemp("built"), isolated=False)
    shutil.copy(wheel, folder)
    needed = requirements(wheel)
    make_index(folder, needed, {name for line in LINES if line.startswith(INSTALL) for name in named(line)} - {"."})
    return folder, needed


@pytest.fixture
def settings(index, tmp_path):
    """Return variables of the environment with which pip, uv and pipx use the folder only, and write below tmp_path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP", "UV_", "PYTHON", "XDG_"))}
    return kept | {
        "DIAGNOSE_NO_CACHE": "1",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_FIND_LINKS": str(index[0]),
        "PIP_NO_INDEX": "1",
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "UV_FIND_LINKS": str(index[0]),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "UV_PYTHON": sys.executable,
    }


def named(line):
    """Return the names of the packages in a line of pip, extras left out."""
    return [word.strip("'").partition("[")[0] for word in line.split()[2:] if not word.startswith("-")]


def extras_of(line):
    return {extra for group in re.findall(r"\[([\w,-]+)\]", line) for extra in group.split(",")}


def project_of(page):
    """Return the pyproject.toml that a page shows, else that of a project without anything."""
    shown = re.search(r"^```toml\n(\[build-system\].*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)
    return shown[1] if shown else PROJECT


def folder_of(line, page, tmp_path):
    """Return the folder that a line is typed in: a clone, or the project of the reader that the page is about."""
    folder = tmp_path / "here"
    folder.mkdir()
    if "-e" in line.split():
        (folder / "ours").mkdir()
        (folder / "ours" / "__init__.py").touch()
        (folder / "pyproject.toml").write_text(project_of(page), encoding="utf-8")
    elif "." in named(line):
        package.copy_tree(folder)
    return folder


def fresh(folder):
    """Return the Python of a new environment without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def typed(line, settings, folder, python=None):
    """Return what a line prints in a shell; ``pip`` is that of ``python``."""
    if python is not None:
        line = re.sub(r"^pip", f"{sys.executable} -m pip --python {python}", line)
    done = subprocess.run(line, shell=True, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def installed(python):
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    return {path.name.partition("-")[0].replace("_", "-").lower() for path in packages.glob("*.dist-info")}


def assert_works(python, settings, tmp_path):
    """Check that the environment's own diagnose is imported, and that its command prints the version."""
    code = "import diagnose; print(diagnose.__version__); print(diagnose.__file__)"
    version, file = typed(f"{python} -c '{code}'", settings, tmp_path).splitlines()
    assert Path(file).is_relative_to(python.parents[1])
    assert typed(f"{python.with_name('diagnose')} --version", settings, tmp_path) == f"diagnose {version}"


def test_lines_are_found_in_texts_that_wrap_and_have_placeholders():
    assert {"README.md", "README.zh.md", "docs/install.md", "docs/tutorial.md"} <= set(LINES["pip install ."])
    assert LINES["pip install 'torch-diagnose[zstd]'"] == ["diagnose/errors.py"]
    assert "diagnose/trace_reader/stored.py" in LINES["pip install 'torch-diagnose[remote]'"]
    assert "pip install diagnose" not in LINES
    assert {line for line in LINES if not line.startswith(INSTALL)} == {"pip uninstall -y diagnose torch-diagnose"}


def test_every_extra_that_is_named_exists():
    text = (ROOT / "pyproject.toml").read_text("utf-8").split("[project.optional-dependencies]")[1].split("\n\n")[0]
    exist = set(re.findall(r"^([\w-]+) = \[", text, re.MULTILINE))
    table = (ROOT / "docs" / "install.md").read_text("utf-8").split("| extra | for |")[1].split("\n\n")[0]
    described = {
        name for cell in re.findall(r"^\| ([^|]+) \|", table, re.M) for name in re.findall(r"`([\w-]+)`", cell)
    }
    assert described | {"docs", "dev"} == exist
    assert {extra for line in LINES for extra in extras_of(line)} <= described


@pytest.mark.full
@pytest.mark.parametrize("line", sorted(line for line in LINES if line.startswith(INSTALL)))
def test_a_printed_line_installs_what_it_names(line, index, settings, tmp_path):
    pages = LINES[line] if "-e" in line.split() else LINES[line][:1]
    for number, page in enumerate(pages):
        here = tmp_path / str(number)
        here.mkdir()
        python = fresh(here / "environment")
        typed(line, settings, folder_of(line, page, here), python)
        if not {".", "torch-diagnose"} & set(named(line)):
            assert set(named(line)) <= installed(python)
            continue
        assert asked_for(index[1], extras_of(line)) | {"torch-diagnose"} <= installed(python)
        assert_works(python, settings, here)


@pytest.mark.full
@pytest.mark.parametrize("first", ["diagnose", "torch-diagnose"])
def test_the_lines_for_a_mixed_up_environment_repair_it(first, index, settings, tmp_path):
    """The other distribution of the name is installed before ours, or after it."""
    other = tmp_path / "other"
    other.mkdir()
    make_wheel(other, "diagnose", "5.0.1", {"diagnose/__init__.py": b"", "diagnose/patchlib.py": b""})
    settings["PIP_FIND_LINKS"] += f" {other}"
    python = fresh(tmp_path / "environment")
    for name in sorted(["diagnose", "torch-diagnose"], key=first.__ne__):
        typed(f"pip install {name}", settings, tmp_path, python)
    refused = subprocess.run(
        [python.with_name("diagnose"), "--version"], env=settings, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    for line in re.search(r"run (pip .+), then (pip .+)\.$", refused.stderr).groups():
        typed(line, settings, tmp_path, python)
    assert_works(python, settings, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("tool", "line"), [("uv", "uvx --from torch-diagnose"), ("pipx", "pipx run --spec torch-diagnose")]
)
def test_the_command_runs_without_an_installation(tool, line, settings, tmp_path):
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    for words in (
        ["install", RUNNERS[tool]],
        ["download", "--dest", tmp_path / "wheels", "pip"],
    ):  # pipx wants a new pip
        got = subprocess.run([tools / "bin" / "pip", "-q", *words], capture_output=True, check=False)
        if got.returncode:
            pytest.skip(f"no index of packages that has {words[-1]} can be reached")
    settings["PIP_FIND_LINKS"] += f" {tmp_path / 'wheels'}"
    settings["PATH"] = f"{tools / 'bin'}{os.pathsep}{settings['PATH']}"
    printed = typed(f"{line} diagnose analyze -q --json {TRACE}", settings, tmp_path)
    assert '"dominant": "data-stall"' in printed
