"""Copies one step ahead on a stream of their own. Times in µs."""

import numpy as np
import pytest

from diagnose.replay.build import replay_base
from diagnose.replay.simulate import period_ns, simulate
from diagnose.replay.transforms import CopiesAhead


@pytest.fixture
def steps(recording):
    """Return a function that makes four steps: a copy whose call blocks the host, then a kernel on its stream."""

    def made(copy_us, kernel_us):
        r = recording()
        length = copy_us + kernel_us + 20
        for number in range(4):
            at = number * length
            r.step(number + 1, at, at + length)
            r.copy("Memcpy HtoD (Pageable -> Device)", at + 8, at + 8 + copy_us, launched=(at + 3, at + 9 + copy_us))
            begin = at + copy_us + 15
            r.kernel("gemm", begin, begin + kernel_us, launched=(begin - 5, begin - 2))
        return r.tables()

    return made


def period_us(t, took_us):
    base = replay_base(t)
    copies = np.flatnonzero(t.tasks.is_copy)
    graph = CopiesAhead(t, copies, np.full(len(copies), took_us * 1000.0))(base.graph)
    return period_ns(graph, simulate(graph), base.owner) / 1000


def test_a_kernel_hides_the_next_copy_and_no_call_blocks(steps):
    # Of 720 a step the host needs 30 and the kernel 500.
    assert period_us(steps(200, 500), 200) == pytest.approx(500, abs=20)


def test_a_step_is_never_shorter_than_its_copies(steps):
    # The link binds: 500 a step at the recorded rate, 250 at twice that.
    t = steps(500, 100)
    assert period_us(t, 500) == pytest.approx(500, abs=20)
    assert period_us(t, 250) == pytest.approx(250, abs=20)
