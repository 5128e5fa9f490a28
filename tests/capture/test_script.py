"""What a script finds on sys.path under us: what it finds under plain Python."""

import os
import subprocess
import sys

import pytest

from diagnose.capture.process.script import NO_FOLDER_IN_FRONT, runs_main

AS_WE_START_IT = f"""
{NO_FOLDER_IN_FRONT}
from diagnose.capture.process.script import run_script
run_script(["show.py"], module=False) if sys.argv[1] == "script" else run_script(["show"], module=True)
"""


@pytest.mark.parametrize(("plainly", "how"), [(["show.py"], "script"), (["-m", "show"], "module")])
@pytest.mark.parametrize("options", [[], ["-P"]], ids=["as usual", "safe path"])
def test_every_folder_of_pythonpath_is_there_in_its_place(tmp_path, plainly, how, options):
    if options and sys.version_info < (3, 11):
        pytest.skip("Python has -P since 3.11")
    (tmp_path / "show.py").write_text("import sys; print([p for p in sys.path if p])")
    first, second = tmp_path / "first", tmp_path / "second"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (first, second, tmp_path)))}

    def path_of(*command):
        command = [sys.executable, *options, *command]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    ours = path_of("-c", AS_WE_START_IT, how)
    assert ours == path_of(*plainly)
    assert f"'{first}', '{second}'" in ours


def test_a_checkout_that_is_not_installed_starts_its_scripts_too(tmp_path):
    code = runs_main("diagnose.trials.guard").replace("main()", "print(main.__module__)")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("diagnose.trials.guard\n", "")
