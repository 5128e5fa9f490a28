"""``diagnose mcp``: a server of the Model Context Protocol, whose tools are commands of diagnose.

Each call runs one command in a process of its own: its answer is what the command gives, standard output carries the
protocol alone, other calls are served meanwhile, and a call that the client cancels ends its process.
"""

from __future__ import annotations

import json
import logging
import secrets
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import anyio
import mcp_types as types
import msgspec
from anyio.abc import ByteReceiveStream, Process
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from diagnose import __version__
from diagnose.cli.mcp_tools import TOOLS, Arguments, Prove, Roots, Runs, checked
from diagnose.errors import DiagnoseError, UsageError
from diagnose.model.files import printable
from diagnose.text.plain_text import MAX_LINE, one_line
from diagnose.trials.limits import limits_of

Context: TypeAlias = ServerRequestContext[Any, Any]

END_S = 20.0  # that a command has to end the processes it started
ANSWERS_WITH_NEXT_CALL = "2026-07-28"  # from this version of the protocol on a question is a result
CONSENT = "consent"
ERROR = "diagnose: error: "
# Not `python -m`, which imports a module of the working folder in the place of Python's own.
RUN = "import sys; sys.path[:] = sys.path[sys.path[0] == '':]; from diagnose.cli.main import main; main()"
INSTRUCTIONS = (
    "Finds out why a PyTorch training step is slow. Call trace with a script, or analyze with a trace of "
    "torch.profiler, a profile of Nsight Systems or a capture folder. Apply the diff of the first change, or do what "
    "its code shows; prove measures the changes; then trace again. explain describes a rule or a change by its id; "
    "query answers questions in SQL; what_if predicts the step after changes; compare shows whether a step became "
    "slower. trace and prove run the script after the user has agreed."
)
ASKED: dict[str, Any] = {
    "type": "object",
    "properties": {"run": {"type": "boolean", "title": "Run it", "default": False}},
    "required": ["run"],
}


def serve(roots: Sequence[str], *, agreed: bool) -> None:
    """Serve on standard input and output until the client closes them.

    Args:
        roots: Folders to read below; without one the working folder.
        agreed: Run scripts without asking.

    Raises:
        UsageError: a root is no folder.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    anyio.run(partial(_serve, Roots.of(roots), agreed=agreed))


async def _serve(roots: Roots, *, agreed: bool) -> None:
    tools = _Tools(roots, agreed=agreed)
    server: Server[Any] = Server(
        "diagnose", version=__version__, instructions=INSTRUCTIONS, on_list_tools=tools.list, on_call_tool=tools.call
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class _Tools:
    """Lists the tools and calls them."""

    def __init__(self, roots: Roots, *, agreed: bool) -> None:
        self._roots, self._agreed = roots, agreed
        self._pending: dict[str, list[str]] = {}  # commands that a user is asked about, by a secret of one use
        # Commands at a time: each reads a trace, and a large one takes all cores for itself.
        self._running, self._proving = anyio.CapacityLimiter(2), anyio.Lock()

    async def list(self, _context: Context, _params: object) -> types.ListToolsResult:
        """Return all tools."""
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=_schema_of(tool.arguments),
                    output_schema=tool.output(),
                    annotations=types.ToolAnnotations(
                        read_only_hint=not issubclass(tool.arguments, Runs),
                        destructive_hint=issubclass(tool.arguments, Runs),
                        open_world_hint=issubclass(tool.arguments, Runs),
                    ),
                )
                for name, tool in TOOLS.items()
            ]
        )

    async def call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Return the answer of a tool; what goes wrong is an answer too, one sentence."""
        try:
            return await self._answer(context, params)
        except DiagnoseError as error:
            return types.CallToolResult(content=[types.TextContent(text=one_line(str(error)))], is_error=True)

    async def _answer(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in TOOLS:
            raise UsageError(f"Unknown tool '{one_line(params.name)}': use one of {', '.join(TOOLS)}.")
        arguments = checked(TOOLS[params.name], params.arguments or {})
        words = await anyio.to_thread.run_sync(arguments.command, self._roots.path)
        if not isinstance(arguments, Runs):
            async with self._running:
                return _result(await _run(words, context, options=["--quiet"]))
        question = None if self._agreed else await self._asked(context, params, arguments, words)
        if question is not None:
            return question
        async with self._proving:  # two at a time would slow each other down
            return _result(await _run(words, context, options=arguments.agreed))

    async def _asked(
        self, context: Context, params: types.CallToolRequestParams, arguments: Runs, words: Sequence[str]
    ) -> types.InputRequiredResult | None:
        """Have the client ask its user; return the question where the answer comes with the next call, else None.

        Raises:
            UsageError: the client cannot ask, or the user does not agree.
        """
        if not _can_ask(context.session.client_capabilities):
            raise UsageError(
                f"Nothing was run: {words[0]} runs a script, and this client cannot ask its user for consent. "
                f"Run {one_line(shlex.join(['diagnose', *words]))} in a terminal, or start the server as diagnose mcp "
                "--trust-client."
            )
        form = types.ElicitRequestFormParams(message=_question(arguments, words), requested_schema=ASKED)
        if context.session.protocol_version < ANSWERS_WITH_NEXT_CALL:
            _check(await context.session.elicit_form(form.message, ASKED, context.request_id))
            return None
        asked_before = self._pending.pop(params.request_state or "", None)
        if asked_before == words and params.input_responses and CONSENT in params.input_responses:
            _check(params.input_responses[CONSENT])
            return None
        secret = secrets.token_urlsafe()
        self._pending[secret] = [*words]
        if len(self._pending) > 16:  # questions without an answer; the oldest is dropped
            self._pending.pop(next(iter(self._pending)))
        return types.InputRequiredResult(
            input_requests={CONSENT: types.ElicitRequest(params=form)}, request_state=secret
        )


def _can_ask(client: types.ClientCapabilities | None) -> bool:
    elicitation = client.elicitation if client is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _question(arguments: Runs, words: Sequence[str]) -> str:
    """Return what the user is asked: all that will run.

    Raises:
        UsageError: it is too long to be read.
    """
    command = shlex.join(["python", *words[words.index("--") + 1 :]])
    if len(command) >= MAX_LINE:
        raise UsageError("The command is too long for a user to check: pass fewer or shorter arguments.")
    can = limits_of(Path.cwd(), Path.cwd()).text if isinstance(arguments, Prove) else "It can do all that you can."
    return f"{arguments.question(printable(Path.cwd()))}\n\n{one_line(command)}\n\n{can}"


def _check(answer: object) -> None:
    """Check that the user agreed.

    Raises:
        UsageError: the answer is another one.
    """
    if not (isinstance(answer, types.ElicitResult) and answer.action == "accept" and _has_agreed(answer)):
        raise UsageError("The user did not agree to run the script: nothing was run.")


def _has_agreed(answer: types.ElicitResult) -> bool:
    return (answer.content or {}).get("run") is True


def _schema_of(arguments: type[Arguments]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([arguments])
    found: dict[str, Any] = components[arguments.__name__]
    return found


def _result(answer: tuple[str, str]) -> types.CallToolResult:
    """Return the answer of a command: its text, and its JSON as structured content."""
    text, content = answer
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=json.loads(content))


async def _run(words: Sequence[str], context: Context, *, options: Sequence[str]) -> tuple[str, str]:
    """Run a command of diagnose and return its text and its JSON; its messages are progress of the call.

    Raises:
        DiagnoseError: it failed; the sentence is the command's own.
    """
    with TemporaryDirectory(prefix="diagnose-mcp-") as folder:
        text = Path(folder, "answer.txt")
        command = [sys.executable, "-c", RUN, words[0], "--json", f"--output={text}", *options, *words[1:]]
        messages: list[str] = []
        chunks: list[bytes] = []
        process = await anyio.open_process(command, stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_report, process.stderr, context, messages)
                chunks += [chunk async for chunk in process.stdout]
            code = await process.wait()
        finally:
            await _end(process)
        if code or not text.exists():
            errors = [line.removeprefix(ERROR) for line in messages if line.startswith(ERROR)]
            raise DiagnoseError(errors[-1] if errors else f"diagnose {words[0]} ended with exit code {code}.")
        return text.read_text(encoding="utf-8"), b"".join(chunks).decode()


async def _report(stream: ByteReceiveStream, context: Context, messages: list[str]) -> None:
    """Hand on what a command writes to standard error, and keep the last of it."""
    num_lines = 0
    async for line in _lines(stream):
        num_lines += 1
        messages[:] = [*messages[-20:], line]  # of a command's messages: the error is among the last
        await context.session.report_progress(num_lines, message=one_line(line))


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[str]:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", errors="replace")
    if rest:
        yield rest.decode("utf-8", errors="replace")


async def _end(process: Process) -> None:
    """End a process whose call was cancelled; one that has ended is left as it is."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
            with anyio.move_on_after(END_S):
                await process.wait()
        if process.returncode is None:
            process.kill()
        await process.aclose()
