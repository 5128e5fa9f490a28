"""A command whose credentials were masked is not run; named with its script it runs, and is shown masked."""

import json

import pytest

from diagnose.cli.prove import ProveRequest, command_of
from diagnose.errors import UsageError


def test_a_masked_command_is_refused_with_the_way_to_run_it(tmp_path):
    described = {"schema_version": 1, "command": ["-m", "train", "--api-key=***"], "cwd": str(tmp_path)}
    (tmp_path / "capture.json").write_text(json.dumps(described))
    with pytest.raises(UsageError, match=r"credentials masked.*: diagnose prove -m train …$"):
        command_of(ProveRequest(script=str(tmp_path)))


def test_a_script_s_command_is_run_as_typed_and_shown_masked(tmp_path):
    (tmp_path / "train.py").touch()
    request = ProveRequest(script=str(tmp_path / "train.py"), args=("--token", "abc"))
    command, capture = command_of(request)
    assert (command.script[1:], capture) == (("--token", "abc"), None)
    assert command.text.endswith("train.py --token ***")
