"""A virtual environment for each tool, so that none sees another's packages."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from yardstick.readers import ROOT
from yardstick.tools.tool import Tool

__all__ = ["FOLDER", "install", "python_of"]

FOLDER = ROOT / "build" / "yardstick"


def python_of(tool: Tool, folder: Path = FOLDER) -> Path:
    """Return the Python that has a tool.

    Raises:
        SystemExit: it is not installed.
    """
    if not tool.requirements:
        return Path(sys.executable)
    python = folder / tool.name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{tool.name} is not installed: evaluation/run.py --install --tool {tool.name}")
    return python


def install(tool: Tool, folder: Path = FOLDER) -> None:
    """Make the environment of a tool. One that runs scripts finds the torch of this Python instead of a second one."""
    if not tool.requirements:
        return
    home = folder / tool.name
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    if tool.needs_torch:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = home / "lib" / version / "site-packages" / "torch_of_the_project.pth"
        packages.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *tool.requirements], check=True)
    if tool.without_dependencies:
        subprocess.run([*pip, "--no-deps", tool.without_dependencies], check=True)
