"""The recorded traces beside the repository, each read and examined once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pytest

from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline.rank import analyze_rank, build_tables
from diagnose.tables import Tables
from diagnose.trace_reader import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"


class Corpus:
    """The recorded traces beside the repository, each read and examined once."""

    @cached_property
    def captures(self) -> dict[str, Capture]:
        files = [path for path in sorted(TRACES.glob("*.json.gz")) if "not_kineto" not in path.name]
        return {path.name.removesuffix(".json.gz"): Capture(read_trace(path)) for path in files}

    @cached_property
    def tables(self) -> dict[str, Tables]:
        return {name: build_tables(c, c.trace) for name, c in self.captures.items()}

    @cached_property
    def diagnoses(self) -> dict[str, Diagnosis]:
        return {name: analyze_rank(c) for name, c in self.captures.items()}


@pytest.fixture(scope="session")
def recorded() -> Corpus:
    """Return the corpus; skip where it is absent."""
    if not TRACES.is_dir():
        pytest.skip("the recorded traces (../shared/traces) are not here")
    return Corpus()
