"""double-precision: kernels or operators whose only floating-point type is float64."""

import pytest

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>, 3>(int)"


def computing(recording, name=ADD, took=400):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::add", -40, -10)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-9, -5))
    return r


@pytest.mark.parametrize(
    "name", [ADD, "ampere_dgemm_64x64_nn", "cutlass_80_tensorop_d884gemm_64x64_16x3_nn", "Cijk_Ailk_Bljk_DB_MT64x32"]
)
def test_half_of_their_time_is_lost(recording, name):
    finding = computing(recording, name).find("double-precision")
    assert (finding.lost_ns, finding.total_ns, finding.where[0].op) == (pytest.approx(200_000), 400_000, "aten::add")


@pytest.mark.parametrize(
    ("name", "took"),
    [
        (ADD, 99),  # less than a tenth of the busy time
        ("ampere_sgemm_64x64_nn", 400),
        ("distribution_nullary_kernel<float, at::CUDAGeneratorImpl*, double>", 400),  # counts in it, yields float32
        ("void doubled_rows(int)", 400),
    ],
)
def test_what_is_none_of_it(recording, name, took):
    assert computing(recording, name, took).find("double-precision") is None


def test_float32_is_prescribed(recording):
    (p,) = computing(recording).prescribe("double-precision")
    assert (p.id, p.saves_ns) == ("single-precision", (pytest.approx(100_000), pytest.approx(200_000)))


def on_a_cpu(recording, types='["double", "double"]', took=400, shapes="[[8, 8], [8]]"):
    r = recording(devices=())
    for step in range(2):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.op("aten::linear", at + 100, at + 100 + took, types=types, shapes=shapes)
        r.op("aten::mm", at + 100, at + 90 + took, types=types, shapes=shapes)
        r.op("aten::relu", at + 800, at + 1000, types='["float"]')
    return r


def test_without_a_device_half_of_the_time_of_operators_is_lost(recording):
    r = on_a_cpu(recording)
    finding = r.find("double-precision")
    assert (finding.lost_ns, finding.title) == (200_000, "Operators compute in float64")
    assert finding.evidence[-1] == "Operators whose inputs are float64 take 400 µs of the step."
    (p,) = r.prescribe("double-precision")
    assert (p.id, p.saves_ns) == ("single-precision", (pytest.approx(100_000), pytest.approx(200_000)))


@pytest.mark.parametrize(
    ("types", "took"), [('["float", "double"]', 400), ('["float"]', 400), ('["long int"]', 400), ('["double"]', 99)]
)
def test_without_a_device_what_is_none_of_it(recording, types, took):
    assert on_a_cpu(recording, types, took).find("double-precision") is None


@pytest.mark.parametrize(
    ("types", "shapes"),
    [('["double", "Scalar"]', "[[], []]"), ('["long int", "double"]', "[[64, 64], []]"), ('["double"]', "cut")],
)
def test_a_number_of_python_is_no_array_of_float64(recording, types, shapes):
    assert on_a_cpu(recording, types, shapes=shapes).find("double-precision") is None
