"""full-precision-matmul: float32 products on a device with tensor cores."""

import pytest

from diagnose.model.events import Device

SGEMM = "volta_sgemm_128x64_tn"


def multiplying(recording, *, name=SGEMM, busy=400, capability=(8, 0)):
    """Return a step of 1000 busy µs with ``busy`` of them in a product."""
    r = recording(devices=[Device(0, "GPU", compute_capability=capability)])
    r.step(1, 0, 1000)
    r.op("aten::linear", -30, 1000)
    r.kernel(name, 0, busy, launched=(-20, -15))
    r.kernel("elementwise", busy, 1000, launched=(-10, -5))
    return r


def test_a_float32_product_runs_at_half_its_rate_or_less(recording):
    r = multiplying(recording)
    finding = r.find("full-precision-matmul")
    assert (finding.lost_ns, finding.count, finding.total_ns, finding.median_ns) == (200_000, 1, 400_000, 400_000)
    assert finding.evidence == (
        "1 kernel a step: 400 µs of it, 40 % of the busy time.",
        f"{SGEMM}: 1 a step, 400 µs.",
    )
    assert finding.where[0].op == "aten::linear"
    assert [f.rule for f in r.diagnosis().findings] == ["full-precision-matmul"]


@pytest.mark.parametrize(("busy", "fires"), [(99, False), (100, True)])
def test_a_tenth_of_the_busy_time(recording, busy, fires):
    assert (multiplying(recording, busy=busy).find("full-precision-matmul") is not None) == fires


@pytest.mark.parametrize(
    ("name", "fires"),
    [
        ("ampere_sgemm_128x64_tn", True),
        ("cudnn::cnn::wgrad2d_grouped_direct_kernel<float, float, int>", False),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8", True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64", False),
        ("cutlass_80_tensorop_s1688gemm_128x64_nn_align4", False),
        ("ampere_bf16_s16816gemm_bf16_128x64", False),
        ("ampere_sgemm_fp16_is_no_such_name", False),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16", True),
        ("elementwise", False),
    ],
)
def test_names_of_float32_products(recording, name, fires):
    assert (multiplying(recording, name=name).find("full-precision-matmul") is not None) == fires


@pytest.mark.parametrize(
    ("capability", "ids"), [((6, 0), None), ((7, 0), ["autocast"]), ((8, 0), ["allow-tf32", "autocast"])]
)
def test_what_the_device_can_do(recording, capability, ids):
    r = multiplying(recording, capability=capability)
    if ids is None:
        assert r.find("full-precision-matmul") is None
    else:
        assert [p.id for p in r.prescribe("full-precision-matmul")] == ids


@pytest.mark.parametrize(("name", "has_tf32"), [("volta_sgemm_128x64_tn", False), ("ampere_sgemm_32x128_nn", True)])
def test_kernels_show_the_generation_where_the_file_does_not(recording, name, has_tf32):
    finding = multiplying(recording, name=name, capability=(0, 0)).find("full-precision-matmul")
    assert finding.facts["has_tf32"] is has_tf32


def test_an_unknown_device_gets_no_claim(recording):
    r = multiplying(recording, name="sgemm_128x64_tn", capability=(0, 0))
    assert r.find("full-precision-matmul") is None


def test_float16_needs_a_scaler_before_ampere(recording):
    (p,) = multiplying(recording, capability=(7, 0)).prescribe("full-precision-matmul")
    assert "torch.float16" in p.after
    assert "GradScaler" in p.after
    assert p.arguments == {"dtype": "float16"}  # what prove runs it with
    allow, autocast = multiplying(recording).prescribe("full-precision-matmul")
    assert allow.after == 'torch.set_float32_matmul_precision("high")'
    assert "torch.bfloat16" in autocast.after
    assert autocast.arguments == {}
    assert "GradScaler" not in autocast.after


@pytest.mark.parametrize("capability", [(7, 0), (8, 0)])
def test_savings_lie_within_the_time_of_the_products(recording, capability):
    for p in multiplying(recording, capability=capability).prescribe("full-precision-matmul"):
        assert p.saves_ns[1] <= 400_000


def test_savings_lie_within_the_loss(recording):
    for p in multiplying(recording).prescribe("full-precision-matmul"):
        assert p.saves_ns[1] <= 200_000


def test_only_time_in_the_window_counts(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(SGEMM, -3000, 1000, launched=(-3020, -3015))
    assert r.find("full-precision-matmul").lost_ns <= 1_000_000
