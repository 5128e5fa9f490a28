"""What a recording would lack, from files with the content that matters; the whole list once on this machine."""

import json

from diagnose.capture.requirements import Check, check_cpus, check_machine, check_memory_limit, check_schedstat
from diagnose.cli.main import run


def test_a_quota_and_a_limit_of_a_container_are_named(tmp_path):
    (tmp_path / "memory.max").write_text("4000000000\n")
    (tmp_path / "memory.current").write_text("3500000000\n")
    cpus = check_cpus(usable=2, seen=8)
    assert (cpus.status, cpus.found) == ("limited", "2 of 8 cores can be used")
    assert cpus.fix == "Set OMP_NUM_THREADS and the number of loader workers for 2 cores."
    assert check_memory_limit(tmp_path).found == "0.5 of 4.0 GB are left below the container's limit"
    assert check_cpus(usable=8, seen=8).status == "ok"
    assert check_memory_limit(tmp_path / "none").status == "ok"


def test_a_kernel_that_does_not_count_waits_is_named(tmp_path):
    (tmp_path / "schedstat").write_text("0 0 0\n")
    assert check_schedstat(tmp_path / "schedstat").status == "limited"
    (tmp_path / "schedstat").write_text("5 7 1\n")
    assert check_schedstat(tmp_path / "schedstat").status == "ok"


def test_a_check_that_fails_is_reported_and_the_others_go_on():
    def fails():
        raise RuntimeError("broken\ndriver")

    first, second = check_machine({"GPU": fails, "x": lambda: Check("ok", "fine")})
    assert (first.status, first.found) == ("limited", "could not be checked (RuntimeError: broken driver)")
    assert second.status == "ok"


def test_the_command_prints_every_check_with_what_is_lacking_and_the_fix(capsys):
    assert run(["doctor", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["name"] for check in checks][:2] == ["torch", "GPU"]
    assert all(check["lacks"] for check in checks if check["status"] in {"limited", "missing"})
    assert all(not check["lacks"] for check in checks if check["status"] in {"ok", "unused"})
