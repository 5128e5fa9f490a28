"""Accelerators that a trace or a script shows and that cannot be recorded are named in a sentence."""

import pytest

from diagnose.model.accelerators import accelerator_of, unrecorded_note


@pytest.mark.parametrize(
    ("name", "accelerator"),
    [
        ("AscendCL@aclrtLaunchKernel", "Ascend NPU"),
        ("npu::npu_fusion_attention", "Ascend NPU"),
        ("hpu::copy", "Gaudi HPU"),
        ("aten::_mps_convolution", "Apple MPS"),
        ("runFunction - job_prep_and_submit_for_execution", "MTIA"),
        ("urEnqueueKernelLaunch", "Intel XPU"),
        ("cnInvokeKernel", "Cambricon MLU"),
        ("cnnlMultiTensorScale", "Cambricon MLU"),
        ("aten::mm", ""),
        ("cudaLaunchKernel", ""),
        ("aten::maximum", ""),
    ],
)
def test_names_show_an_accelerator(name, accelerator):
    assert accelerator_of(["aten::add", name]) == accelerator


def test_a_model_on_a_device_without_a_profiler_is_stated():
    assert unrecorded_note(["cuda:0", "cpu"], ["cpu", "cuda"]) == ""
    assert unrecorded_note([], ["cpu"]) == ""
    assert unrecorded_note(["mps:0"], ["cpu"]) == (
        "The model is on Apple MPS, which this torch's profiler does not record: only the host was recorded, and waits "
        "for the device count as the host's time."
    )
    assert unrecorded_note(["privateuseone:0"], ["cpu"]).startswith("The model is on privateuseone, which")


def test_a_trace_of_an_npu_without_its_tasks_is_no_silent_cpu_trace(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("npu::npu_fusion_attention", 100, 400)
    notes = [note.text for note in r.diagnosis().trust]
    assert notes[0].startswith("The operators ran on Ascend NPU, whose tasks are not in this file: only the host")
