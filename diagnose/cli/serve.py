"""``diagnose serve``: captures and reports of a folder in a browser, read only, for this machine and one person.

Every address begins with a secret of this start, and names what it shows by a number from the list: no path comes from
an address. The server listens on 127.0.0.1 and answers GET and HEAD that name it as their host, so that no page of
another site can read it, neither directly nor by a name that leads here.
"""

from __future__ import annotations

import html
import secrets
import signal
import sys
import threading
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from diagnose.cli.archive import Entry, entries
from diagnose.cli.roots import Roots
from diagnose.errors import DiagnoseError, UsageError
from diagnose.model.files import printable
from diagnose.reports.language import ENGLISH, language
from diagnose.text.patterns import lazy_pattern
from diagnose.text.plain_text import one_line
from diagnose.text.progress import Progress

__all__ = ["Archive", "Server", "serve"]

ADDRESS = "127.0.0.1"
MAX_WAIT_S = 30  # for a request to be sent
READ_ONLY = ("GET", "HEAD")
SCRIPT = lazy_pattern(r"script-src ((?:'sha256-[A-Za-z0-9+/=]+' ?)+|'none')")
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def serve(folder: str, port: int, lang: str = ENGLISH) -> None:
    """Serve the page of a folder, in a language, until it is interrupted.

    Raises:
        UsageError: it is no folder, or the port is in use.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"Invalid folder {printable(folder)}: use an existing one with captures or reports.")
    try:
        server = Server(Archive(Path(folder), lang), port)
    except OSError as error:
        raise UsageError(f"Port {port} cannot be used ({error.strerror}); choose another --port.") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        print(server.url, flush=True)
        print("diagnose: keep the address to yourself; Ctrl-C ends the server", file=sys.stderr, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class Archive:
    """The pages of one folder."""

    def __init__(self, folder: Path, lang: str = ENGLISH) -> None:
        self._name, self._root, self._lang = str(folder), folder.resolve(), lang
        self._roots = Roots((self._root,))
        self._analysing = threading.Lock()  # one at a time: it takes all cores

    def index(self) -> str:
        """Return the list."""
        from diagnose.reports.archive_page import Recording, render

        recordings = [
            Recording(
                name=entry.name,
                link=f"r/{entry.id}",
                kind=entry.kind,
                time=f"{entry.time.astimezone():%Y-%m-%d %H:%M}",
                script=entry.command,
                device=entry.device,
                torch=entry.torch,
                ranks=entry.ranks,
                verdict=entry.verdict,
                unprofiled_ns=entry.unprofiled_ns,
                recorded_ns=entry.recorded_ns,
            )
            for entry in entries(self._root)
        ]
        with language(self._lang):  # a thread of the server's begins in English
            return render(self._name, recordings)

    def report(self, number: str) -> str | None:
        """Return the report of an entry, None where there is no such entry.

        Raises:
            DiagnoseError: it cannot be read, or leads out of the folder.
        """
        entry = next((entry for entry in entries(self._root) if entry.id == number), None)
        if entry is None:
            return None
        with self._analysing:
            return self._rendered(entry)

    def _rendered(self, entry: Entry) -> str:
        from diagnose.pipeline.cache import default_cache
        from diagnose.pipeline.job import analyze_inputs
        from diagnose.pipeline.workers import Workers
        from diagnose.reports import html as report
        from diagnose.reports.json_reading import from_json

        path = self._roots.path(str(entry.path))
        if entry.kind == "report":
            diagnosis = from_json(Path(path).read_bytes(), source=entry.name)
        else:
            quiet = Progress(quiet=True)
            diagnosis = analyze_inputs([path], workers=Workers(1, cache=default_cache()), progress=quiet, draw=True)
        with language(self._lang):
            return report.render(diagnosis)


class Server(ThreadingHTTPServer):
    """The server of an archive."""

    daemon_threads = True

    def __init__(self, archive: Archive, port: int = 0) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.archive = archive
        self.token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """Return the address of the list."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def page(self, path: str) -> str | None:
        """Return the page at the path of an address, None where there is none.

        Raises:
            DiagnoseError: it cannot be made.
        """
        empty, token, *rest = path.split("/") if path.count("/") > 1 else ("", "")
        if empty or not compare_digest(token.encode(), self.token.encode()):
            return None
        if rest == [""]:
            return self.archive.index()
        return self.archive.report(rest[1]) if len(rest) == 2 and rest[0] == "r" else None


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = MAX_WAIT_S
    protocol_version = "HTTP/1.1"

    def version_string(self) -> str:
        return "diagnose"

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: addresses hold the secret."""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if hosts not in ([f"{name}:{self.server.server_port}"] for name in (ADDRESS, "localhost")):
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "The request names another host.")
        if self.command not in READ_ONLY:
            return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "The page is read only.")
        return True

    def _refuse(self, status: HTTPStatus, why: str) -> bool:
        self.close_connection = True  # what else was sent is not read
        self._answer(status, _plain(why))
        return False

    def do_GET(self) -> None:
        """Answer with a page."""
        try:
            page = self.server.page(self.path.partition("?")[0])
        except DiagnoseError as error:
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, _plain(one_line(str(error))))
            return
        except Exception as error:  # of one recording: the list and the others stay
            print(f"diagnose: a report could not be made ({type(error).__name__})", file=sys.stderr)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, _plain("This report could not be made."))
            return
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, _plain("There is no such page. Open the address that was printed."))
            return
        self._answer(HTTPStatus.OK, page)

    do_HEAD = do_GET  # as http.server calls it

    def _answer(self, status: HTTPStatus, page: str) -> None:
        content = page.encode("utf-8", errors="replace")
        scripts = SCRIPT.search(page[:4096])
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", POLICY.format(scripts=scripts[1] if scripts else "'none'"))
        self.send_header("Content-Length", str(len(content)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(READ_ONLY))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _plain(sentence: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>diagnose serve</title></head>'
        f"<body><main><h1>diagnose serve</h1><p>{html.escape(sentence)}</p></main></body></html>"
    )
