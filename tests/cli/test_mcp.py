"""``diagnose mcp`` as an agent's client has it: the SDK's own client, over standard input and output."""

import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import jsonschema
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult

from diagnose.cli.mcp_tools import Roots
from diagnose.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPT = "open('ran', 'w').close()\n"
TRAINING = """
import torch

open("left", "w").close()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4000):
    optimizer.zero_grad()
    model(torch.randn(512, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder with a capture, a report of it, and a script that leaves a mark."""
    shutil.copytree(FIXTURES / "traces" / "slow_dataset-planted", tmp_path / "capture")
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@asynccontextmanager
async def connected(*, answers=(), mode="auto"):
    """Yield a client of the server; ``answers`` are its user's, without any it cannot ask."""
    asked = []

    async def ask(_context, params):
        asked.append(params.message)
        return answers[len(asked) - 1]

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "diagnose", "mcp"], env={**os.environ, "DIAGNOSE_MCP_TRUST_CLIENT": "1"}
    )
    async with Client(command, mode=mode, elicitation_callback=ask if answers else None) as client:
        client.asked = asked
        yield client


def test_an_agent_reads_and_predicts_and_compares(project):
    async def session():
        async with connected() as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["analyze", "what_if", "compare", "explain", "query", "trace", "prove"]
            results = {}

            async def call(key, name, arguments):
                results[key] = await client.call_tool(name, arguments)

            async with anyio.create_task_group() as group:  # all at once: none waits for another's end
                group.start_soon(call, "analyze", "analyze", {"paths": ["capture"]})
                group.start_soon(call, "what_if", "what_if", {"path": "capture", "without": ["data-stall"]})
                group.start_soon(call, "compare", "compare", {"before": ["capture"], "after": ["capture"]})
                group.start_soon(call, "explain", "explain", {"name": "data-stall"})
                sql = "SELECT kind, COUNT(*) FROM events GROUP BY kind"
                group.start_soon(call, "query", "query", {"paths": ["capture"], "sql": sql})
                group.start_soon(call, "unknown", "explain", {"name": "data-stal"})
                group.start_soon(call, "outside", "analyze", {"paths": ["/etc/passwd"]})
                group.start_soon(call, "missing", "analyze", {"paths": ["--help"]})
                group.start_soon(call, "wrong", "analyze", {"path": "capture"})
            return tools, results

    tools, results = anyio.run(session)
    found = results["analyze"]
    jsonschema.validate(found.structured_content, tools["analyze"].output_schema)
    assert found.structured_content["dominant"] == "data-stall"
    assert "data-stall" in found.content[0].text
    assert not found.is_error
    now, after = results["what_if"].structured_content["forecasts"]
    assert after["step_ms"] < now["step_ms"]
    assert results["compare"].structured_content["outcome"] in {"same", "undecided"}
    assert dict(results["query"].structured_content["rows"])["kernel"] > 0
    assert results["explain"].structured_content["kind"] == "idle"
    errors = {key: result.content[0].text for key, result in results.items() if result.is_error}
    assert errors == {
        "unknown": "Unknown rule or change 'data-stal': did you mean data-stall?",
        "outside": f"/etc/passwd leads out of {project} and is not read; the server reads elsewhere with diagnose mcp "
        "--root FOLDER.",
        "missing": "--help cannot be read: give the path of a file or folder that exists here.",
        "wrong": "Invalid arguments: Object contains unknown field `path`. See the tool's input schema.",
    }


def agreed(*, run):
    return ElicitResult(action="accept", content={"run": run})


def prove(client, **more):
    return client.call_tool("prove", {"script": "train.py", "args": ["--lr", "0 1"], "budget": "60s"}, **more)


def test_a_client_that_cannot_ask_is_refused(project):
    async def session():
        async with connected() as client:
            return await prove(client)

    result = anyio.run(session)
    assert result.is_error
    assert result.content[0].text == (
        "Nothing was run: prove runs a script, and this client cannot ask its user for consent. Run "
        "diagnose prove --budget=60s -- train.py --lr '0 1' in a terminal, or start the server as diagnose mcp "
        "--trust-client."
    )


def test_a_script_is_recorded_and_diagnosed_after_consent(project):
    (project / "train.py").write_text(TRAINING)

    async def session():
        async with connected(answers=[agreed(run=False), agreed(run=True)]) as client:
            arguments = {"script": "train.py", "quick": True}
            return [await client.call_tool("trace", arguments) for _ in range(2)], client.asked

    (refused, traced), asked = anyio.run(session)
    assert refused.content[0].text == "The user did not agree to run the script: nothing was run."
    assert "It can do all that you can." in asked[0]
    assert not traced.is_error, traced.content[0].text
    assert traced.structured_content["step_ms"] > 0
    assert not (project / "left").exists()  # it ran in a copy


REFUSED = ElicitResult(action="decline")


@pytest.mark.parametrize(
    ("mode", "runs"),
    [("auto", True), ("legacy", False), pytest.param("legacy", True, marks=pytest.mark.full)],
)  # the question is a result, and a request of the server
def test_nothing_is_run_without_consent(project, mode, runs):
    """The script imports no torch: that it was run is seen by what prove has to state about it."""
    answers = [REFUSED, agreed(run=False), *([agreed(run=True)] if runs else [])]

    async def session():
        async with connected(answers=answers, mode=mode) as client:
            return [(await prove(client)).content[0].text for _ in answers], client.asked

    texts, asked = anyio.run(session)
    assert texts[:2] == ["The user did not agree to run the script: nothing was run."] * 2
    assert all("the script never imported torch" in text for text in texts[2:])
    assert len(asked) == len(answers)
    assert "python train.py --lr '0 1'" in asked[0]
    assert f"for up to 60s, in a copy of {project}" in asked[0]
    assert not (project / "ran").exists()  # it ran in the copy


def test_an_answer_to_a_question_that_was_not_asked_is_none(project):
    async def session():
        async with connected(answers=[ElicitResult(action="cancel")]) as client:
            made_up = {"input_responses": {"consent": agreed(run=True)}, "request_state": "made up"}
            return (await prove(client, **made_up)).content[0].text, client.asked

    text, asked = anyio.run(session)
    assert text == "The user did not agree to run the script: nothing was run."
    assert len(asked) == 1


def test_without_the_extra_one_sentence_names_the_remedy(monkeypatch, capsys):
    from diagnose.cli.main import run

    monkeypatch.setattr("diagnose.cli.commands.find_spec", lambda _name: None)
    assert run(["mcp"]) == 4
    assert capsys.readouterr().err == (
        "diagnose: error: diagnose mcp serves the Model Context Protocol, which needs packages that are not installed: "
        "pip install 'torch-diagnose[mcp]'.\n"
    )


def test_links_do_not_lead_out_of_the_roots(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "t.json").write_text("{}")
    (project / "link.json").symlink_to(elsewhere / "t.json")
    (project / "folder").mkdir()
    (project / "folder" / "t.json").symlink_to(elsewhere / "t.json")
    roots = Roots.of(())
    assert roots.path(f"{project}/capture/../capture") == "capture"
    for name in ("link.json", "folder", "..", "s3://bucket/run", "-", "a\0b"):
        with pytest.raises(InputError):
            roots.path(name)
    assert Roots.of([str(elsewhere)]).path("folder/t.json") == str(elsewhere / "t.json")
