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
    assert (p.id, "do not change" in p.safety) == ("sparse-embeddings", True)


@pytest.mark.parametrize("fill", [5, 15])
def test_the_table_of_a_language_model_is_small(recording, fill):
    assert updating(recording, fill=fill).find("dense-embedding-gradients") is None


def test_fills_elsewhere_are_no_gradients(recording):
    assert updating(recording, inside=False).find("dense-embedding-gradients") is None
