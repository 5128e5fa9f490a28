"""The rules of a busy device on recorded traces: what they find is there, and each piece of time counts once."""

import pytest

BUSY = ("unfused-attention", "unfused-elementwise", "slow-kernel")


def lost(recorded, name):
    answer = recorded.diagnoses[name]
    return {f.rule: f.lost_ns / answer.step_ns for f in answer.findings}


@pytest.mark.parametrize(
    ("name", "dominant"),
    [
        ("tlut_add_mi300", "slow-kernel"),
        ("tlut_sdpa_long_mi300", "slow-kernel"),
        ("tl_qwen05b_h100", "unfused-elementwise"),
    ],
)
def test_full_devices(recorded, name, dominant):
    assert recorded.diagnoses[name].dominant == dominant


@pytest.mark.parametrize("name", ["tl_owlv2_h100", "tl_timesformer_h100"])
def test_written_out_attention_beside_a_larger_stall(recorded, name):
    answer = recorded.diagnoses[name]
    assert answer.dominant not in BUSY
    assert lost(recorded, name)["unfused-attention"] > 0.2


@pytest.mark.parametrize("name", ["luatil_gpt_compile", "ao_vit_bf16_a100"])
def test_nothing_is_said_without_proof(recorded, name):
    assert set(lost(recorded, name)).isdisjoint(BUSY)


def test_together_they_lose_no_more_than_the_busy_time(recorded):
    for name, answer in recorded.diagnoses.items():
        if answer.queue:
            assert sum(lost(recorded, name).get(rule, 0) for rule in BUSY) <= answer.queue.busy_share + 1e-9, name
