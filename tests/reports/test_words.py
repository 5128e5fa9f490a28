"""Numbers, places, names and the small pictures."""

import pytest

from diagnose.model.charts import Gap
from diagnose.model.diagnosis import Where
from diagnose.reports.format import duration, line_of, path_tail, percent, place, summed
from diagnose.reports.rule_labels import PHASES
from diagnose.reports.text_charts import bar, cells, depth_columns, idle_columns, shades, sparkline
from diagnose.text.kernel_names import shorten


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"), (412, "412 ns"), (1_500, "1.50 µs"), (999_400, "999 µs"), (999_600, "1.00 ms"),
        (12_340_000, "12.3 ms"), (1_520_000_000, "1.52 s"), (float("nan"), "–"), (None, "–"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_a_fitting_unit(ns, text):
    assert duration(ns) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0 %"), (1e-5, "<0.1 %"), (0.123, "12.3 %"), (0.99999, ">99.9 %"), (1, "100.0 %")]
)
def test_percentages_never_round_to_nothing_or_to_all(share, text):
    assert percent(share) == text


def test_places_say_what_is_known():
    assert place(Where("a/train.py", 3, "step", "aten::mm")) == "a/train.py:3 in step · aten::mm"
    assert place(Where(op="aten::mm")) == "aten::mm"
    assert line_of(Where("project/train.py", 3)) == "project/train.py:3"
    assert line_of(Where("/home/ada/project/train.py", 3)) == "train.py:3"
    assert line_of(Where(op="autograd::engine::evaluate_function: IndexBackward0")) == "IndexBackward0"
    assert place(Where()) == ""
    assert path_tail("/very/long/path/to/some/project/src/train.py", 24) == "…/project/src/train.py"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("aten::linear", "aten::linear"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",) * 2,
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
         "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0> >(int)",
         "multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
         "at::native::sum_functor<float, float, float>::operator()> > >(int)", "reduce_kernel<sum_functor>"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, int> >(int)", "reduce_kernel<ReduceOp>"),
        ("<>", "<>"), ("", ""),
    ],
)  # fmt: skip
def test_kernel_names_for_people(name, short):
    assert shorten(name) == short


@pytest.mark.parametrize(
    ("argument", "short"),
    [
        ("dpsk::grouped_gemm::fp8_acc::GemmKernel", "device_kernel<fp8_acc::GemmKernel>"),
        ("flash::FlashAttnBwd<flash::Mainloop<2>, int>", "device_kernel<flash::FlashAttnBwd>"),
        ("4", "device_kernel<4>"),
    ],
)
def test_a_kernel_that_runs_any_type_is_named_for_it(argument, short):
    assert shorten(f"void cutlass::device_kernel<{argument}>({argument}::Params)") == short


def test_an_elementwise_kernel_is_named_for_its_functor(kernel_name):
    assert shorten(kernel_name) == "vectorized_elementwise_kernel<CUDAFunctor_add>"


def test_short_names_keep_to_their_limit(kernel_name, hostile_text):
    for name in (kernel_name, hostile_text, "x" * 500, "a<" * 200):
        assert len(shorten(name, 30)) <= 30


def test_depth_is_averaged_over_time():
    assert depth_columns([(0, 4), (25, 0), (50, 2)], 100, 2) == [2.0, 2.0]
    assert depth_columns([], 100, 2) == [0, 0]
    assert depth_columns([(0, 1)], 0, 2) == [0, 0]


def test_idle_is_shared_out_to_columns():
    gaps = [Gap(0, 16, "a", ""), Gap(24, 40, "b", ""), Gap(56, 200, "a", "")]
    assert idle_columns(gaps, 64, 2) == [{"a": 0.5, "b": 0.25}, {"b": 0.25, "a": 0.25}]


def test_pictures_of_characters():
    assert sparkline([0, 1, 300]) == " ▁█"
    assert sparkline([0, 0]) == "  "
    assert shades([0, 0.5, 1, 1.2, -1]) == "·▒██·"
    assert (bar(0.5, 10), bar(0, 10), bar(float("nan"), 10), bar(2, 3)) == ("█████", "", "", "███")


@pytest.mark.parametrize("shares", [(0.38, 0.05, 0.03, 0.54), (0.999, 0.0005, 0.0005, 0), (0, 0, 0, 1), (0.25,) * 4])
def test_cells_sum_to_the_width_and_show_everything_present(shares):
    found = cells(shares, 50)
    assert sum(found) == 50
    assert all((count > 0) == (share > 0) for count, share in zip(found, shares, strict=True))


def test_small_causes_are_summed_up():
    shares = {"a": 0.5, "b": 0.2, "c": 0.1, "d": 0.1, "e": 0.0}
    assert summed(shares, 2) == [("a", 0.5), ("b", 0.2), ("2 smaller causes", 0.2)]
    assert [name for name, _ in summed(shares, 3)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["rollout", "inference"])
def test_a_phase_is_explained_by_what_is_seen_of_it(name):
    """Gradients that are off are seen, whatever is computed meanwhile: a model, a metric, a line of a log."""
    assert "model" not in PHASES[name].label
    assert "gradients off" in PHASES[name].label
    assert "backward pass" in PHASES[name].label
