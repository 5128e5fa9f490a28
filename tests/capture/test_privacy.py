"""What a capture folder holds, and what it must not hold."""

import gzip
import json
import stat


def text_of(path):
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def test_no_file_of_a_capture_holds_a_credential_or_names_the_host(captured):
    folder = captured["train"].folder
    texts = {path.name: text_of(path) for path in folder.iterdir()}
    traces = ["rank0.attribution.pt.trace.json.gz", "rank0.light.pt.trace.json.gz"]
    rows = [f"rank0.{what}.json.gz" for what in ("lines", "samples", "steps")]
    assert sorted(texts) == sorted(["capture.json", "rank0.dataflow.json.gz", *traces, *rows])
    assert [name for name, text in texts.items() if "planted-" in text] == []
    for trace in (json.loads(texts[name]) for name in traces):
        assert (trace["host_name"], trace["traceName"].count("/")) == ("", 0)
    assert captured["train"].info.command[-3:] == ("--api-key=***", "--token", "***")
    assert stat.S_IMODE((folder / "rank0.lines.json.gz").stat().st_mode) == 0o600
