"""Memory that is full: each change has the bytes that it frees, the batch that then fits, and what it costs a step."""

from diagnose.changes.common.prescribe import also_possible, prescribe
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Device
from diagnose.tables.program import Program, program_of

MB = 1_000_000
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def full(recording, *, batch_size=32, **info):
    """Return a step of 5 ms that fills 500 MB: 300 MB of activations, 100 from before; 2 ms of it are the forward."""
    r = recording(devices=[Device(0, "NVIDIA A100", 500 * MB, 108, (8, 0))])
    optimizer = {"class": "AdamW", "param_bytes": 40 * MB, "state_bytes": 60 * MB}
    r.with_info(loader={"batch_size": batch_size}, optimizer=optimizer, **info)
    r.step(1, 0, 5000)
    r.op("aten::linear", 10, 200)
    r.kernel("gemm", 20, 2020, launched=(15, 18))
    r.memory(20, 300 * MB, 1, 400 * MB, reserved=500 * MB)
    r.op(BACKWARD, 400, 600)
    r.kernel("gemm_backward", 2020, 4900, launched=(420, 430))
    r.memory(410, 40 * MB, 2, 440 * MB, reserved=500 * MB)
    r.memory(500, -300 * MB, 1, 140 * MB, reserved=500 * MB)
    r.annotation("Optimizer.step#AdamW.step", 700, 800)
    r.kernel("adam", 4900, 5000, launched=(710, 720))
    return r


def plan(r):
    finding, program = r.find("memory-pressure"), program_of(r.tables())
    prescribed = [*prescribe(finding, 5e6, program), *also_possible(finding, 5e6, program)]
    return {p.id: p.title.partition(" (")[2].rstrip(")") for p in prescribed if " (up to" in p.title}


def test_each_change_states_the_batch_that_fits_and_what_it_costs(recording):
    """Of 500 MB 450 can be used. 300 MB grow with 32 samples, 9.375 MB each; 140 MB do not."""
    assert plan(full(recording)) == {
        # 78 MB for 32 samples: (450 - 140) / 78 × 32; the forward takes 2 ms
        "checkpoint-blocks": "up to 0.22 GB less at the peak: fits at batch 127, costs up to 2.00 ms a step",
        # nothing is left that grows: 64 times the batch; 600 MB at 0.4 of 31.5 GB/s
        "offload-activations": "up to 0.30 GB less at the peak: fits at batch 2048, costs up to 47.6 ms a step",
        # 75 MB for 32 samples
        "accumulate-gradients": "up to 0.23 GB less at the peak: fits at batch 132",
        # 44 MB less of what does not grow: (450 - 96) / 300 × 32
        "eight-bit-optimizer": "up to 0.04 GB less at the peak: fits at batch 37",
        # 60 MB less; 120 MB at 0.4 to 0.9 of 31.5 GB/s
        "offload-optimizer": "up to 0.06 GB less at the peak: fits at batch 39, costs 4.23 ms to 9.52 ms a step",
    }


def test_what_is_not_known_is_not_stated(recording):
    assert plan(full(recording, batch_size=None))["checkpoint-blocks"] == (
        "up to 0.22 GB less at the peak: costs up to 2.00 ms a step"
    )
    facts = {"by_category": {"activations": 300 * MB}}
    finding = Finding("memory-pressure", "", 0.0, facts=facts)
    _, p = prescribe(finding, 5e6, Program(trains=True, batch_size=8))
    assert p.id == "checkpoint-blocks"
    assert p.title.endswith("(up to 0.22 GB less at the peak)")


def test_a_batch_that_does_not_fit_even_so_is_not_named(recording):
    times = [recording().epoch_ns - 50_000_000, recording().epoch_ns + 500_000]
    gpu = {"index": 0, "memory_total_bytes": 700 * MB, "time_ns": times, "memory_used_bytes": [0, 700 * MB]}
    r = full(recording, nvml={"gpus": [gpu]})
    assert "fits at batch" not in plan(r)["eight-bit-optimizer"]  # 200 MB are somebody else's


def test_most_bytes_come_first():
    facts = {"by_category": {"activations": 400 * MB, "optimizer state": 350 * MB}}
    found = also_possible(Finding("memory-pressure", "", 0.0, facts=facts), 5e6, Program(trains=True))
    assert [p.id for p in found[:3]] == ["offload-activations", "offload-optimizer", "accumulate-gradients"]
