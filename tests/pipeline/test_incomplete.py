"""Recordings that cannot carry an answer: the first line says so. Few tasks of whole steps can."""

import pytest

from diagnose.answer.screen import answer
from diagnose.model.words import english


def test_launches_without_any_device_task_are_no_cpu_training(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.runtime("cudaLaunchKernel", 10, 20)
    d = r.diagnosis()
    (note,) = [n for n in d.trust if n.rule == "lost-records"]
    assert note.text == (
        "The file has 1 call of the GPU's runtime but no device task although the file lists NVIDIA A100: "
        "ProfilerActivity.CUDA was on, and the device's records were lost. Close other profilers of this GPU, such as "
        "Nsight or DCGM, and in a container allow CUPTI (--cap-add=SYS_ADMIN)."
    )
    assert english(answer(d).headline) == "Record again first: the device's records are missing"
    assert english(answer(d).pill) == "No diagnosis"
    assert answer(d).cards == ()
    assert d.not_checked["slow-kernel"] == "device records"


@pytest.mark.parametrize(("until", "is_missing"), [(99, False), (100, True)])
def test_a_wait_for_a_device_of_a_tenth_of_the_step_shows_that_one_worked(recording, until, is_missing):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 200, 900)
    r.runtime("cudaDeviceSynchronize", 0, until)
    assert (answer(r.diagnosis()).record_again is not None) == is_missing


def test_the_pageable_copy_of_a_toy_of_few_tasks_is_the_answer(recording):
    """Three launches and three tasks in each of three steps; the copy takes 700 of 1,000 µs."""
    r = recording()
    for i in range(3):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.copy("Memcpy HtoD (Pageable -> Device)", at + 20, at + 720, launched=(at + 10, at + 720), size=4_000_000)
        r.kernel("gemm", at + 730, at + 850, launched=(at + 721, at + 725))
        r.kernel("add", at + 850, at + 990, launched=(at + 726, at + 729))
    d = r.diagnosis()
    assert (d.dominant, answer(d).record_again) == ("exposed-copy", None)
    assert "3 of 3 pageable" in d.findings[0].evidence[0]
    assert [card.prescription.id for card in answer(d).cards] == ["prefetch-to-device"]


@pytest.mark.parametrize(("load", "is_cold"), [(340, True), (330, False)])
def test_warm_up_over_a_third_of_the_recording_is_a_cold_start(recording, load, is_cold):
    r = recording()
    r.step(1, 0, 1000)
    r.step(2, 1000, 2000)
    r.runtime("cuModuleLoadData", 10, 10 + 2 * load)
    for at in (750, 1000):
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 1000 if at == 750 else 1950)
    d = r.diagnosis()
    assert d.findings[0].rule == "data-stall"  # 1,200 of 2,000 µs
    assert (answer(d).record_again is not None) == is_cold
