"""Traces behind URLs, from a server that answers as S3 does."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from diagnose.errors import InputError
from diagnose.trace_reader import open_captures
from tests.trace_reader.test_inputs import trace_of

BIG = 3000  # events: more than a block, and than one request fetches where blocks are made small


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Start a server with a run of two ranks in several forms, and return the URL of its bucket."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        system = fsspec.filesystem("s3")
        system.mkdir("bucket")
        files = {f"run/rank{rank}.json.gz": gzip.compress(trace_of(rank, BIG)) for rank in (0, 1)}
        for name, data in files.items():
            system.pipe(f"bucket/{name}", data)
        yield "s3://bucket"
        system.clear_instance_cache()
    server.stop()


@pytest.mark.parametrize("path", ["run", "run/", "run/rank*.json.gz", "run/rank[01].json.gz"])
def test_the_ranks_of_a_run_behind_a_url(bucket, path, monkeypatch):
    monkeypatch.setattr("diagnose.trace_reader.stored._PIPE_BLOCK_BYTES", 5000)
    captures = open_captures([f"{bucket}/{path}"])
    assert [(c.trace.rank, c.trace.names[0], len(c.trace.events)) for c in captures] == [
        (0, "aten::op0", BIG),
        (1, "aten::op1", BIG),
    ]
    assert captures[1].trace.path.startswith(f"{bucket}/run")
    assert captures[1].trace.trust == ()


def test_the_command_answers_for_a_run_behind_a_url(bucket, tmp_path):
    """In a process of its own: one that started workers before has them without the store's credentials."""
    output = tmp_path / "answer.json"
    asked = ["analyze", f"{bucket}/run", "--json", "--no-cache", "--quiet", "--output", str(output)]
    done = subprocess.run([sys.executable, "-m", "diagnose", *asked], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(output.read_text())
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    assert answer["source"]["path"].startswith(f"{bucket}/run/rank")


def test_one_file_behind_a_url(bucket):
    (capture,) = open_captures([f"{bucket}/run/rank1.json.gz"])
    assert capture.trace.rank == 1


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("absent", r"^s3://bucket/absent does not exist\. Check the URL\.$"),
        ("absent*", r"^s3://bucket/absent\* matches no file\. Check the pattern\.$"),
    ],
)
def test_what_does_not_exist_behind_a_url(bucket, path, sentence):
    with pytest.raises(InputError, match=sentence):
        open_captures([f"{bucket}/{path}"])


def test_a_store_of_which_no_package_is_known():
    with pytest.raises(InputError, match=r"^nosuch://x/run cannot be opened \(Protocol not known: nosuch\)\. Check"):
        open_captures(["nosuch://x/run"])


def test_a_store_that_fails_gives_the_events_before_it(bucket, monkeypatch):
    from diagnose.trace_reader.stored import RemoteFile

    read = RemoteFile.read

    num_read = 0

    def failing(file, count):
        nonlocal num_read
        if num_read > 1 << 15:
            raise OSError(5, "the store has gone")
        data = read(file, count)
        num_read += len(data)
        return data

    import fsspec

    fsspec.filesystem("s3").pipe("bucket/long/rank0.json", trace_of(0, BIG))
    monkeypatch.setattr(RemoteFile, "read", failing)
    monkeypatch.setattr("diagnose.trace_reader.events.READ_BLOCK_BYTES", 1 << 14)
    (capture,) = open_captures([f"{bucket}/long/rank0.json"])
    assert capture.trace.trust[0].text.startswith("The file is cut off (reading it failed: the store has gone): ")
    assert 0 < len(capture.trace.events) < BIG


def test_credentials_in_a_url_are_masked(bucket):
    with pytest.raises(InputError) as error:
        open_captures(["https://127.0.0.1:9/run.json?X-Amz-Signature=secret&token=secret"])
    assert "secret" not in str(error.value)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "b"
