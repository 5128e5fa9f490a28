"""slow-fft-length: transforms of lengths with a large prime factor. Times in µs.

By the number of operations, a real transform of 20479 points takes 8 times that of 20480, a complex one 4 times.
"""

from dataclasses import replace

import pytest

from diagnose.analyzers import slow_fft_length
from diagnose.pipeline.find import build_tables
from tests.dataflow.table import Table

REAL, COMPLEX = (
    '["float", "ScalarList", "Scalar", "Scalar"]',
    '["c10::complex<float>", "ScalarList", "Scalar", "Scalar"]',
)
BLUESTEIN = "void multi_bluestein_fft<5u, EPT<5u>, 256u>(kernel_arguments_blu_t<unsigned int>)"


def transform(r, start, end, n=20479, name="r2c", **texts):
    given = {"shapes": f"[[8, {n}], [], [], []]", "types": REAL, "values": '["", "[1]", "0", "True"]'}
    if name == "c2r":
        given = {
            "shapes": f"[[8, {n // 2 + 1}], [], [], []]", "types": COMPLEX, "values": f'["", "[1]", "2", "{n}"]'
        }  # fmt: skip
    if name == "c2c":
        given |= {"types": COMPLEX, "values": '["", "[1]", "0", "False"]'}
    r.op(f"aten::_fft_{name}", start, end, **(given | texts))


def padding(r, start, end, n=20479, value="0."):
    shapes, types = "[[8, 10000], [], []]", '["float", "ScalarList", "Scalar"]'
    r.op("aten::constant_pad_nd", start, end, shapes=shapes, types=types, values=f'["", "[0, {n - 10000}]", "{value}"]')


def on_host(recording, *, mkl=True, **options):
    """Return a step of 1000 µs without a device, 400 of it in one transform."""
    r = recording(devices=())
    r.with_info(flags={"mkl": mkl})
    r.step(1, 0, 1000)
    transform(r, 100, 500, **options)
    r.op("aten::add", 500, 1000)
    return r


def on_device(recording, kernel=BLUESTEIN, **options):
    """Return a step of 1000 µs of which a transform's kernels take 400, and a copy of its input 100."""
    r = recording()
    r.step(1, 0, 1000)
    transform(r, -50, -5, **options)
    r.kernel(kernel, 0, 400, launched=(-40, -35))
    r.kernel("elementwise_kernel<direct_copy_kernel_cuda>", 400, 500, launched=(-30, -25))
    r.kernel("gemm", 500, 1000, launched=(-4, -2))
    return r


@pytest.mark.parametrize(
    ("name", "n", "lost"),
    [
        ("r2c", 20479, 400 * 7 / 8),
        ("c2r", 20479, 400 * 7 / 8),
        ("c2c", 20479, 400 * 3 / 4),
        ("r2c", 2 * 10007, 400 * 3 / 4),  # even: a complex one of half the length
        ("r2c", 1984, 400 * (1 - 1 / (1 + 4 * 31 / (5 * 10.954)))),  # 2^6 x 31, summed up directly
    ],
)
def test_what_a_fast_length_saves_on_the_host(recording, name, n, lost):
    finding = on_host(recording, name=name, n=n).find("slow-fft-length")
    assert finding.lost_ns == pytest.approx(1000 * lost, rel=0.01)


@pytest.mark.parametrize("n", [20480, 2002, 2 * 3 * 5 * 7 * 11 * 13, 16807])
def test_factors_with_kernels(recording, n):
    assert on_host(recording, n=n).find("slow-fft-length") is None


def test_direct_sums_are_slow_with_mkl_only(recording):
    assert on_host(recording, n=1984, mkl=False).find("slow-fft-length") is None
    assert on_host(recording, n=20479, mkl=False).find("slow-fft-length") is not None


@pytest.mark.parametrize(("took", "is_found"), [(30, False), (40, True)])
def test_a_small_part_of_the_step(recording, took, is_found):
    r = recording(devices=())
    r.step(1, 0, 1000)
    transform(r, 100, 100 + took)
    r.op("aten::add", 500, 1000)
    assert (r.find("slow-fft-length") is not None) == is_found


def test_a_call_that_hardly_computes(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    for start in range(0, 1000, 14):
        transform(r, start, start + 14, n=17)
    assert r.find("slow-fft-length") is None


def test_transforms_that_others_call_count_once(recording):
    r = on_host(recording, name="c2r")
    transform(r, 200, 400, name="c2c")
    assert r.find("slow-fft-length").lost_ns == pytest.approx(350_000, rel=0.01)


def test_the_kernels_of_a_device(recording):
    r = on_device(recording)
    finding = r.find("slow-fft-length")
    assert finding.lost_ns == pytest.approx(350_000, rel=0.01)  # the copy stays
    assert finding.evidence[1] == (
        "20479 is prime: 1 transform a step, 400 µs of it. 20480 = 2^12 x 5 takes 13 % of the operations."
    )
    assert r.diagnosis().kernel_families["fft"] == pytest.approx(0.4)


def test_kernels_launched_before_the_recording_have_the_usual_share(recording):
    r = on_device(recording)
    r.rows = [row for row in r.rows if row.name != "gemm"]
    r.kernel(BLUESTEIN, 500, 1000)
    assert r.find("slow-fft-length").lost_ns == pytest.approx(900_000 * 7 / 8, rel=0.01)


def test_a_device_decides_by_its_kernels(recording):
    assert on_device(recording, "void vector_fft<4096u, EPT<8u>>").find("slow-fft-length") is None


def test_without_shapes_nothing_is_said(recording):
    r = on_device(recording)
    for row in r.rows:
        row.values = {key: value for key, value in row.values.items() if key not in ("shapes", "types", "values")}
    assert r.find("slow-fft-length") is None
    assert r.diagnosis().not_checked["slow-fft-length"] == "shapes"


def test_shapes_come_from_the_attribution_window(recording):
    """The host is ahead: it launched the window's first tasks before, at the end of a step like the others."""

    def steps(**texts):
        r = recording()
        for number in range(3):
            start = 1000 * number
            r.step(number + 1, start, start + 1000)
            transform(r, start + 100, start + 150, **texts)
            r.kernel(BLUESTEIN, start + 400, start + 900, launched=(start + 110, start + 120))
        return r

    ahead, shaped = steps(shapes="", types="", values=""), steps()
    ahead.rows = [row for row in ahead.rows if row.name != "ProfilerStep#1"]
    for row in ahead.rows:
        row.values = {key: value for key, value in row.values.items() if key not in ("shapes", "types", "values")}
    capture = ahead.capture(attribution=shaped)
    t = build_tables(capture, capture.trace)
    ((calls,), limit) = slow_fft_length.slow_calls(t), 3
    assert (calls.transform.lengths, len(calls.rows)) == ((20479,), limit)


@pytest.mark.parametrize("shapes", ["[[8, 99999999999999999999], [], [], []]", "[[], [], [], []]", "[[8, 0]]", "x"])
def test_shapes_that_are_none(recording, shapes):
    assert on_host(recording, shapes=shapes).find("slow-fft-length") is None


# What the advice says is safe.


def convolving(recording, *, value="0.", back=True):
    r = on_host(recording)
    padding(r, 500, 510, value=value)
    if back:
        transform(r, 510, 520, name="c2r")
    return r


def test_a_convolution_is_padded_further(recording):
    (p,) = convolving(recording).prescribe("slow-fft-length")
    assert p.title == "Pad the transforms to 20480 instead of 20479: more zeros, the same convolution"
    assert "n = 20480   # 2^12 x 5, in all of its transforms; less than 20479 would wrap around" in p.after
    assert (p.promise, p.saves_ns[1] / p.saves_ns[0]) == ("rounding", pytest.approx(1 / 0.7))


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({"back": False}, "Take 20480 samples for each spectrum instead of 20479"),
        ({"value": "1."}, "Give the transforms 20480 points instead of 20479, for example by padding"),
    ],
)
def test_other_uses_train_differently(recording, options, title):
    (p,) = convolving(recording, **options).prescribe("slow-fft-length")
    assert (p.title, p.promise) == (title, "other")


def with_flow(recording, table):
    r = on_host(recording)
    transform(r, 510, 520, name="c2r")
    capture = replace(r.capture(), dataflow=table.graph().flow)
    t = build_tables(capture, capture.trace)
    (finding,) = slow_fft_length.find(t)
    return finding


def test_zeros_of_which_a_part_is_written_are_padding(recording):
    table = Table()
    zeros = table.op("zeros", shape=(8, 20479), line=3)
    table.read_on_host(
        table.op("_fft_r2c", table.op("copy_", zeros, table.value(8, 10000), into=zeros, line=4), line=5)
    )
    finding = with_flow(recording, table)
    assert finding.facts["kind"] == "convolution"
    assert [place.line for place in finding.where] == [5, 3]


def test_weights_that_are_a_spectrum_keep_their_frequencies(recording):
    table = Table()
    zeros = table.op("zeros", shape=(8, 20479), line=3)
    spectrum = table.op("_fft_r2c", table.op("copy_", zeros, table.value(8, 10000), into=zeros, line=4), line=5)
    table.read_on_host(table.op("mul", spectrum, table.value(8, 64, role="parameter", dtype="complex64"), line=6))
    assert with_flow(recording, table).facts["kind"] == "periodic"
