"""scripts/python and .ci/matrix: which environment they make and use. A shell script stands for every Python."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """\
#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip install"*--no-deps*)
    described=${0%/bin/python}/lib/python3.10/site-packages/torch-2.6.0.dist-info
    mkdir -p "$described"
    for line in "Name: torch" "Requires-Dist: jinja2" "Requires-Dist: sympy (==1.13.1)" \\
        "Requires-Dist: triton==3.2.0; x"; do echo "$line" >>"$described/METADATA"; done
    ;;
"-m pip install"*" -c "*) cat "$(echo "$*" | sed 's/.* -c \\([^ ]*\\) .*/\\1/')" >"$CALLS.pins" ;;
"-m pytest"*) echo "$TESTS" && [ "$TESTS" = "3 passed" ] ;;
"-c "*platform*) echo 3.10.13 2.6.0 ;;
-c*|-m*) ;;
*) echo "$0|${PYTHONPATH-}|$*" ;;
esac
"""
UV = """\
#!/bin/sh
echo "uv $*" >>"$CALLS"
case "$*" in
"venv -q --python "*) "$4" -m venv "$5" ;;
"pip install "*) "$(echo "$*" | sed 's/.* --python //')" -m "$@" ;;
*) exit 1 ;;
esac
"""
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a repository with the two scripts; ``python3`` and ``python3.10`` are stand-ins that write their calls."""
    for name in ("scripts/python", ".ci/matrix"):
        (tmp_path / "main" / name).parent.mkdir(parents=True)
        (tmp_path / "main" / name).write_bytes((ROOT / name).read_bytes())
        (tmp_path / "main" / name).chmod(0o755)
    (tmp_path / "main" / "pyproject.toml").write_text("dependencies\n[tool.pytest.ini_options]\n")
    (tmp_path / "main" / "constraints.txt").write_text(
        'torch==2.13.0\ntriton==3.7.1\nsympy==1.14.0\njinja2==3.1.6\nnumpy==2.4.6; python_version >= "3.11"\n'
    )
    (tmp_path / "main" / ".gitignore").write_text(".venv\n")
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python3.10"):
        stand_in(tmp_path / "bin" / name, PYTHON)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    for name in ("PYTHON", "MATRIX_VENV", "MATRIX_TORCH", "GIT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "x")):
        subprocess.run([*GIT, *words], cwd=tmp_path / "main", check=True)
    return tmp_path / "main"


def stand_in(path, script):
    path.write_text(script)
    path.chmod(0o755)


def run(*words):
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stdout.splitlines()


def linked_worktree(checkout):
    tree = checkout.with_name("tree")
    subprocess.run(["git", "worktree", "add", "-q", "-b", "b", tree], cwd=checkout, check=True)
    return tree


def test_a_linked_worktree_uses_the_environment_of_the_main_checkout(checkout):
    own = str(checkout / ".venv" / "bin" / "python")
    assert run(checkout / "scripts" / "python", "a.py") == (0, [f"{own}||a.py"])
    tree = linked_worktree(checkout)
    assert run(tree / "scripts" / "python", "a.py") == (0, [f"{own}|{tree}|a.py"])
    assert not (tree / ".venv").exists()


def test_a_linked_worktree_with_other_pins_makes_its_own(checkout):
    run(checkout / "scripts" / "python", "a.py")
    tree = linked_worktree(checkout)
    (tree / "constraints.txt").write_text("sympy==1.15.0\n")
    own = f"{tree / '.venv' / 'bin' / 'python'}||a.py"
    assert run(tree / "scripts" / "python", "a.py") == (0, [own])
    assert run(tree / "scripts" / "python", "a.py") == (0, [own])


@pytest.mark.parametrize("tool", ["venv", "uv"])
def test_a_row_of_the_matrix_has_the_versions_and_what_the_tests_ended_with(tool, checkout, tmp_path, monkeypatch):
    if tool == "uv":
        stand_in(tmp_path / "bin" / "uv", UV)
    monkeypatch.setenv("TESTS", "3 passed")
    code, lines = run(checkout / ".ci" / "matrix", "3.10:torch==2.6.*")
    assert (code, [line.split() for line in lines[1:]]) == (0, [["3.10.13", "2.6.0", "3", "passed"]])
    calls = (tmp_path / "calls").read_text()
    assert "-m pip install -q --no-deps torch==2.6.*" in calls
    assert ("uv pip install" in calls) == (tool == "uv")
    pins = (tmp_path / "calls.pins").read_text().splitlines()
    assert pins == ["jinja2==3.1.6", 'numpy==2.4.6; python_version >= "3.11"']
    assert not (checkout / ".venv").exists()


def test_a_failing_combination_fails_the_matrix_and_the_next_one_runs(checkout, monkeypatch):
    monkeypatch.setenv("TESTS", "1 failed")
    code, lines = run(checkout / ".ci" / "matrix", "3.10:torch", "3.999:torch", "3.10:torch==2.6.*")
    rows = [line.split() for line in lines if line.startswith("3.")]
    no_python, failing = ["3.999", "-", "no", "such", "Python"], ["3.10.13", "2.6.0", "1", "failed"]
    assert (code, rows) == (1, [failing, no_python, failing])
    assert lines.count("1 failed") == 2


def test_the_matrix_has_three_versions_of_torch_and_two_of_python(checkout, monkeypatch):
    monkeypatch.setenv("TESTS", "3 passed")
    (checkout.with_name("bin") / "python3.13").symlink_to("python3.10")
    code, lines = run(checkout / ".ci" / "matrix")
    assert (code, len(lines)) == (0, 1 + 3 * 2)
