"""The command line of ``diagnose mcp``; nothing heavy is imported here."""

from __future__ import annotations

from importlib.util import find_spec

import click

from diagnose.cli.help import INTEGRATIONS, Command, option
from diagnose.errors import missing_extra

__all__ = ["mcp"]

SERVER = "Server"


@click.command(
    cls=Command,
    section=INTEGRATIONS,
    short_help="Serve diagnose to a coding agent.",
    examples=[
        "diagnose mcp",
        "diagnose mcp --root . --root /data/captures",
    ],
)
@option(
    "--root",
    "roots",
    group=SERVER,
    multiple=True,
    metavar="FOLDER",
    help="Read below FOLDER only; repeatable.  [default: the working folder]",
)
@option(
    "--trust-client",
    group=SERVER,
    is_flag=True,
    is_consent=True,
    help="Allow prove to run scripts without confirmation: whether the client asks its user is up to the client.",
)
def mcp(roots: tuple[str, ...], trust_client: bool) -> None:
    """Serve analyze, what_if, compare, explain and prove over the Model Context Protocol, on standard input and output.

    An agent's client starts this command. Before prove runs a script the client asks its user; a client that cannot
    ask is refused, unless --trust-client is given. Needs pip install 'diagnose[mcp]'.
    """
    if find_spec("mcp") is None or find_spec("mcp_types") is None:  # the second one came with version 2
        raise missing_extra("diagnose mcp serves the Model Context Protocol", "mcp")
    from diagnose.cli.mcp import serve

    serve(roots, agreed=trust_client)
