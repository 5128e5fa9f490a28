"""What users call is importable from diagnose.kernels, and imported only when it is asked for."""

import importlib
import subprocess
import sys
from pathlib import Path

from diagnose import kernels

FOLDER = Path(__file__).parents[2] / "kernels"
OLD_NAMES = kernels._OLD_NAMES
MODULES = sorted(p.stem for p in FOLDER.glob("*.py") if not p.name.startswith("_") and p.stem not in OLD_NAMES)


def test_a_name_is_the_one_of_its_module():
    for name in kernels.__all__:
        module = importlib.import_module(f"diagnose.kernels.{kernels._HOME_OF[name]}")
        assert getattr(kernels, name) is getattr(module, name), name
        assert name in module.__all__


def test_every_remedy_has_a_name_that_hides_no_module():
    assert set(kernels._HOMES) == set(MODULES)
    assert sorted(kernels.__all__) == sorted(kernels._HOME_OF)
    assert not set(kernels.__all__) & {*MODULES, "ops", "distributed"}
    assert set(kernels.__all__) <= set(dir(kernels))


def test_nothing_is_imported_before_it_is_asked_for():
    code = (
        "import sys, diagnose.kernels\n"
        "assert 'torch' not in sys.modules\n"
        "from diagnose.kernels import DeferredMetrics, patch\n"
        "assert 'diagnose.kernels.patching' in sys.modules and 'diagnose.kernels.offload' not in sys.modules\n"
        "try:\n"
        "    from diagnose.kernels import pach\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "cannot import name 'pach'" in done.stdout, done.stderr
