"""Builds the wheel and the source distribution, and checks both as a user gets them.

    scripts/package                              everything, with the Python at hand
    scripts/package --python python3.10 python3.13   install with these
    scripts/package --quick                      build, check, install without dependencies; nothing is downloaded
    scripts/package --out dist                   keep what was built

Everything is: `twine check`, and the files in the wheel against those of the tree; wheel and sdist each in a fresh
environment of each Python, with all dependencies but torch (reading a trace needs none; --torch installs it too), where
the command has to diagnose a recorded trace; the types of the public face under `pyright --verifytypes`; and whether
the extra `all` can be resolved with constraints.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "fixtures" / "traces" / "slow_dataset-planted"
LINKED = ("analyzers", "kernels", "reports")
PUBLIC = ("diagnose.api", "diagnose.errors", "diagnose.capture.step_marker")  # the homes of all names of `diagnose`


class PackageError(Exception):
    """What was built is not as it should be: one sentence."""


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command, which does not see this tree by PYTHONPATH, and return its standard output.

    Raises:
        PackageError: it failed.
    """
    env = {name: value for name, value in (env or os.environ).items() if name != "PYTHONPATH"}
    ended = subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        shown = "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-15:])
        raise PackageError(f"{' '.join(map(str, words))} failed:\n{shown}")
    return ended.stdout


def build(out: Path, *, isolated: bool) -> tuple[Path, Path]:
    """Return the wheel and the source distribution, built from what git would hand out."""
    how = [] if isolated else ["--no-isolation"]
    with tempfile.TemporaryDirectory(prefix="diagnose-build-") as folder:
        source = Path(folder, "source")
        copy_tree(source)
        run(sys.executable, "-m", "build", *how, "--outdir", out, source)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def copy_tree(folder: Path) -> None:
    """Copy what git would hand out of this tree."""
    for name in run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0"):
        path = ROOT / name
        if name and os.path.lexists(path):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name, follow_symlinks=False)


def expected_files() -> set[str]:
    """Return what a wheel holds of this tree: sources, and the data files beside them."""
    return set(_files_of_tree())


def _files_of_tree() -> Iterator[str]:
    for name in run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0"):
        first = name.partition("/")[0]
        if first in LINKED and (ROOT / name).is_file():
            yield f"diagnose/{name}"
        elif first == "diagnose" and (ROOT / name).is_file():
            yield name


def check_content(wheel: Path) -> None:
    """Compare the files of a wheel with those of the tree."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    for names, how in ((expected_files() - held, "lacks"), (held - expected_files(), "should not hold")):
        if names:
            raise PackageError(f"The wheel {how} {', '.join(sorted(names)[:5])}.")


def install(built: Path, python: str, folder: Path, *, torch: bool, dependencies: bool) -> Path:
    """Install what was built in a fresh environment and return its Python."""
    run(python, "-m", "venv", "--without-pip", folder)
    inside = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    install = (*pip, "--python", inside, "install", "-c", ROOT / "constraints.txt")
    if torch:
        run(*install, built)
        return inside
    if not dependencies:  # those of the environment at hand serve, and nothing is downloaded
        if built.suffix == ".gz":
            run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "made", built)
            built = next((folder / "made").iterdir())
        run(*install, "--no-deps", built)  # before that environment is seen, where this tree is installed
        site = run(inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        here = run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        Path(site, "dependencies.pth").write_text(f"{here}\n", encoding="utf-8")
        return inside
    run(*install, "--no-deps", built)
    code = "from importlib.metadata import requires; print('\\n'.join(requires('torch-diagnose')))"
    needed = [line for line in run(inside, "-c", code).splitlines() if "extra ==" not in line]
    run(*install, *[line for line in needed if not line.startswith("torch")])
    return inside


def check_installed(python: Path) -> str:
    """Check that the command works where it was installed, and return its version."""
    with tempfile.TemporaryDirectory(prefix="diagnose-try-") as elsewhere:
        env = {**os.environ, "DIAGNOSE_NO_CACHE": "1"}
        command = python.parent / "diagnose"
        where = run(python, "-c", "import diagnose; print(diagnose.__file__)", cwd=Path(elsewhere), env=env).strip()
        if not Path(where).is_relative_to(python.parents[1]):
            raise PackageError(f"{python} imports diagnose from {where}.")
        found = json.loads(run(command, "analyze", "--json", "-q", TRACE, cwd=Path(elsewhere), env=env))
        if found["dominant"] != "data-stall":
            raise PackageError(f"The installed command finds {found['dominant']} in {TRACE.name}.")
        run(command, "analyze", "-q", "-o", "report.html", TRACE, cwd=Path(elsewhere), env=env)
        run(command, "explain", "data-stall", cwd=Path(elsewhere), env=env)
        return run(command, "--version", cwd=Path(elsewhere), env=env).strip()


def check_types(python: Path) -> None:
    """Check that every public name has a type that no checker has to infer."""
    # pyright finds a package by the environment that is active.
    env = {**os.environ, "VIRTUAL_ENV": str(python.parents[1]), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    for module in PUBLIC:
        words = [sys.executable, "-m", "pyright", "--verifytypes", module, "--ignoreexternal"]
        with tempfile.TemporaryDirectory(prefix="diagnose-types-") as elsewhere:
            ended = subprocess.run(words, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)
        score = re.search(r"Type completeness score: (\S+)", ended.stdout)
        print(f"types of {module}: {score[1] if score else 'unknown'}", flush=True)
        if score is None or score[1] != "100%":
            raise PackageError(f"{module} is not typed completely:\n{ended.stdout[-1500:]}{ended.stderr[-500:]}")


def check_extras(wheel: Path) -> None:
    """Check that the extra `all` can be resolved with the versions of constraints.txt."""
    words = ("--dry-run", "--ignore-installed", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
    run(sys.executable, "-m", "pip", "install", *words, f"torch-diagnose[all] @ {wheel.resolve().as_uri()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to install with")
    parser.add_argument("--out", type=Path, help="folder that keeps wheel and sdist")
    parser.add_argument("--quick", action="store_true", help="build, check and install without any download")
    parser.add_argument("--torch", action="store_true", help="install torch too")
    parser.add_argument("--no-types", action="store_true", help="leave pyright out")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="diagnose-package-") as folder:
        try:
            _package(asked, Path(folder))
        except PackageError as error:
            print(f"package: {error}", file=sys.stderr)
            return 1
    return 0


def _package(asked: argparse.Namespace, folder: Path) -> None:
    out = (asked.out or folder / "dist").resolve()
    wheel, sdist = build(out, isolated=not asked.quick)
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    check_content(wheel)
    print(
        f"built {wheel.name} ({wheel.stat().st_size:,} bytes) and {sdist.name} ({sdist.stat().st_size:,})", flush=True
    )
    for number, python in enumerate(asked.python):
        for built in (wheel, sdist):
            inside = folder / f"{number}-{'wheel' if built is wheel else 'sdist'}"
            environment = install(built, python, inside, torch=asked.torch, dependencies=not asked.quick)
            version = run(environment, "-c", "import platform; print(platform.python_version())").strip()
            print(f"{built.name}: {check_installed(environment)} works on Python {version}", flush=True)
    if not asked.quick:
        check_extras(wheel)
        print("torch-diagnose[all] resolves with constraints.txt", flush=True)
    if not asked.quick and not asked.no_types:
        check_types(install(wheel, sys.executable, folder / "types", torch=False, dependencies=False))


if __name__ == "__main__":
    sys.exit(main())
