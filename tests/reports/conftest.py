"""One diagnosis for each form that a report can take."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from diagnose.analyzers import LEGENDS
from diagnose.model.diagnosis import Diagnosis
from tests.reports.forms import (
    HOSTILE,
    KERNEL,
    bare,
    cpu_bound,
    device,
    gaps,
    healthy,
    hostile,
    no_gpu,
    ranks,
    trials,
)
from tests.reports.more_forms import compiled, inference, low_trust, ranks_8, ranks_256

FORMS: Mapping[str, Diagnosis] = {
    make.__name__: replace(make(), legends=LEGENDS)
    for make in (
        gaps, healthy, cpu_bound, no_gpu, ranks, trials, device, hostile, bare, low_trust,
        inference, compiled, ranks_8, ranks_256,
    )
}  # fmt: skip


@pytest.fixture
def forms() -> Mapping[str, Diagnosis]:
    return FORMS


@pytest.fixture(params=FORMS)
def any_form(request: pytest.FixtureRequest) -> Diagnosis:
    return FORMS[request.param]


@pytest.fixture
def kernel_name() -> str:
    return KERNEL


@pytest.fixture
def hostile_text() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from tests.reports.browsing import start  # which skips where the packages are missing

    yield from start(tmp_path_factory)


@pytest.fixture
def show(browser, tmp_path):
    from tests.reports.browsing import opener

    return opener(browser, tmp_path)
