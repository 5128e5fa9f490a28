"""The rules of a busy device on recorded traces: what they find is there, and each piece of time counts once."""

import pytest

from diagnose.pipeline.run import analyze_captures

BUSY = (
    "unfused-attention", "recompute", "layout-copy", "memset-traffic", "scatter-atomics", "unfused-elementwise",
    "misaligned-matmul", "small-grid", "slow-kernel",
)  # fmt: skip


def lost(recorded, name):
    answer = recorded.diagnoses[name]
    return {f.rule: f.lost_ns / answer.step_ns for f in answer.findings}


@pytest.mark.parametrize(
    ("name", "dominant"),
    [
        ("tlut_add_mi300", "unfused-elementwise"),
        ("tlut_sdpa_long_mi300", None),
        ("tl_qwen05b_h100", "unfused-elementwise"),
    ],
)
def test_full_devices(recorded, name, dominant):
    d = recorded.diagnoses[name]
    assert d.dominant == dominant
    if dominant is None:  # of slow kernels only a trial shows whether others are faster: they are listed and tried
        assert [(f.rule, f.worth_ns) for f in d.findings] == [("slow-kernel", 0.0)]
        assert d.headline.startswith("Little waste found: the GPU is busy ")
        assert d.to_try


WRITTEN_OUT = [pytest.param("tl_owlv2_h100", marks=pytest.mark.full), "tl_timesformer_h100"]


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_written_out_attention_beside_a_larger_stall(recorded, name):
    answer = recorded.diagnoses[name]
    assert answer.dominant not in BUSY
    assert lost(recorded, name)["unfused-attention"] > 0.2


@pytest.mark.parametrize("name", ["luatil_gpt_compile", "ao_vit_bf16_a100"])
def test_nothing_is_said_without_proof(recorded, name):
    assert set(lost(recorded, name)).isdisjoint(BUSY)


def test_together_they_lose_no_more_than_the_busy_time(recorded, extent):
    for name in recorded.of(extent):
        answer = recorded.diagnoses[name]
        if answer.queue:
            assert sum(lost(recorded, name).get(rule, 0) for rule in BUSY) <= answer.queue.busy_share + 1e-9, name


def finding(recorded, name, rule):
    return next(f for f in recorded.diagnoses[name].findings if f.rule == rule)


def test_copies_of_less_than_a_tenth_of_the_busy_time_are_what_operators_need(recorded):
    assert "layout-copy" not in lost(recorded, "tl_qwen05b_h100")


def test_conversions_of_an_image_model(recorded):
    assert "foldedNhwcToNhwc" in finding(recorded, "ao_sam_amg_a100", "layout-copy").evidence[1]


def test_recomputation_where_activations_are_checkpointed_and_nowhere_else(recorded, extent):
    names = {*recorded.of(extent), "tl_rn_actckpt_ddp_mi300x"}
    found = {name for name in names if any(f.rule == "recompute" for f in recorded.diagnoses[name].findings)}
    assert found == {"tl_rn_actckpt_ddp_mi300x"}
    assert "batch_norm_collect_statistics" in finding(recorded, *found, "recompute").evidence[1]


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_written_out_attention_is_not_told_to_pad(recorded, name):
    assert "misaligned-matmul" not in lost(recorded, name)


def test_a_recorded_run_of_eight_ranks(recorded):
    found = analyze_captures([recorded.captures[f"param_dlrm_v100_r{i}"] for i in range(8)], draw=False)
    straggler = next(f for f in found.findings if f.rule == "straggler")
    assert straggler.title == (
        "58 % of the waiting is in the first collective: rank 7 begins its step 4.52 ms late; otherwise ranks 7, 5 and "
        "4 take turns"
    )
    assert "56 % of the time in communication that nothing hides" in straggler.evidence[0]
    # Of the step of 19.0 ms of the slowest rank; no rank is late in most steps.
    assert [(f.rule, round(f.worth_ns / 1e6, 2)) for f in found.findings[:2]] == [
        ("launch-bound", 4.32), ("straggler", 3.48),
    ]  # fmt: skip
    assert found.dominant == "launch-bound"
    assert min(found.ranks, key=lambda r: r.waits_ns).rank == 7


def test_of_two_ranks_of_a_large_job_nobody_is_called_late(recorded):
    found = analyze_captures([recorded.captures[f"hta_dlrm_sampled_r{i}"] for i in range(2)], draw=False)
    assert "straggler" not in {f.rule for f in found.findings}
    notes = [note.text for note in found.trust]
    assert "Of 128 ranks 2 were given: ranks 2 to 127 are missing." in notes
    assert any("that lack more than half of their ranks: who waits" in text for text in notes)
    assert [r.waits_ns for r in found.ranks] == [None, None]
    assert (found.job.collectives, [row.late_ns for row in found.job.rows]) == ((), [None, None])
