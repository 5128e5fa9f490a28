"""dense-embedding-gradients: fills of whole tables, and the updates of all their rows. Times in µs."""

import pytest

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>"
UPDATE = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>>"


def updating(recording, fill=50, update=200, *, inside=True):
    r = recording()
    r.step(1, 0, 1000)
    if inside:
        r.op("autograd::engine::evaluate_function: EmbeddingBackward0", -30, -10)
    r.kernel(FILL, 0, fill, launched=(-20, -15))
    r.kernel(UPDATE, fill, fill + update, launched=(-8, -6))
    r.kernel("gemm", fill + update, 1000, launched=(-5, -2))
    return r


def test_fills_and_updates_are_its_cost(recording):
    finding = updating(recording).find("dense-embedding-gradients")
    assert (finding.lost_ns, finding.count) == (pytest.approx(250_000), 2)
    (p,) = updating(recording).prescribe("dense-embedding-gradients")
    assert (p.id, "stand still" in p.safety) == ("sparse-embeddings", True)


@pytest.mark.parametrize("fill", [5, 15])
def test_the_table_of_a_language_model_is_small(recording, fill):
    assert updating(recording, fill=fill).find("dense-embedding-gradients") is None


def test_fills_elsewhere_are_no_gradients(recording):
    assert updating(recording, inside=False).find("dense-embedding-gradients") is None


def on_a_cpu(recording, rows=10_000, looked_up=256):
    r = recording(devices=())
    table = f"[{rows}, 64]"
    for step in range(2):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.op("aten::embedding", at, at + 100, shapes=f"[{table}, [{looked_up}], [], [], []]")
        r.op("aten::linear", at + 100, at + 400, shapes="[[256, 64], [64, 64]]")
        r.op("autograd::engine::evaluate_function: EmbeddingBackward0", at + 400, at + 600)
        r.op("aten::embedding_dense_backward", at + 410, at + 590, shapes=f"[[{looked_up}, 64], [{looked_up}], [], []]")
        r.annotation("Optimizer.step#Adagrad.step", at + 600, at + 1000)
        r.op("aten::addcdiv_", at + 600, at + 800, shapes=f"[{table}, {table}, {table}, []]")
        r.op("aten::addcdiv_", at + 800, at + 1000, shapes="[[64, 64], [64, 64], [64, 64], []]")
    return r


def test_without_a_device_the_updates_of_whole_tables_are_its_cost(recording):
    finding = on_a_cpu(recording).find("dense-embedding-gradients")
    assert finding.lost_ns == pytest.approx(380_000)
    assert finding.evidence[-1].endswith("for 380 µs of the step.")


@pytest.mark.parametrize("change", [{"rows": 1000}, {"looked_up": 2501}])
def test_without_a_device_a_table_that_is_used_is_no_waste(recording, change):
    assert on_a_cpu(recording, **change).find("dense-embedding-gradients") is None
