"""host-collective: barriers and object collectives that the launching thread waits in."""

import pytest


def test_a_barrier_before_the_late_launch(late):
    late.op("c10d::barrier", 300, 690)
    assert late.booked() == {"host-collective": 390_000, "launch-bound": 10_000}
    finding = late.find("host-collective")
    assert (finding.lost_ns, finding.count, finding.confidence) == (390_000, 1, "high")
    assert finding.where[0].op == "c10d::barrier"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("op", "c10d::monitored_barrier_"),
        ("annotation", "nccl:barrier"),
        ("annotation", "gloo:barrier"),
        ("frame", "torch/distributed/distributed_c10d.py(3000): all_gather_object"),
        ("frame", "torch/distributed/distributed_c10d.py(4000): barrier"),
        ("frame", "<built-in method wait of torch._C._distributed_c10d.Work object at 0x7f>"),
        ("frame", "<built-in method get of torch._C._distributed_c10d.TCPStore object at 0x7f>"),
    ],
)
def test_what_waits_for_other_ranks(late, kind, name):
    getattr(late, kind)(name, 300, 690)
    assert late.booked()["host-collective"] == 390_000


@pytest.mark.parametrize("name", ["c10d::allreduce_", "nccl:all_reduce", "record_param_comms", "aten::mm"])
def test_what_only_queues_work_does_not(late, name):
    late.op(name, 300, 690)
    assert late.booked() == {"launch-bound": 400_000}


@pytest.mark.parametrize(("until", "booked"), [(349, 0), (350, 50_000)])
def test_a_wait_lasts_50_us_or_more(late, until, booked):
    late.op("c10d::barrier", 300, until)
    late.op("aten::mm", until, 690)
    assert late.booked().get("host-collective", 0) == booked


def test_a_wait_beside_a_busy_device_costs_nothing(late):
    late.op("c10d::barrier", 10, 290)
    assert "host-collective" not in late.booked()


def test_it_is_taken_out_of_the_loop(late):
    late.op("c10d::barrier", 300, 690)
    (p,) = late.prescribe("host-collective")
    assert p.id == "no-host-collective"
    assert p.title.startswith("Take the barrier or object collective out of the loop")
    assert "dist.barrier()" in p.before
    assert "async_op=True" in p.after
    assert p.saves_ns == (234_000, 390_000)


def test_without_a_device(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    r.op("c10d::barrier", 600, 1000)
    assert r.booked() == {"operators": 600_000, "host-collective": 400_000}


def test_without_a_device_a_part_of_an_object_collective_is_told_by_the_attribution_window(recording):
    def ring(r):
        r.step(1, 0, 1000)
        r.op("aten::mm", 0, 400)
        r.annotation("gloo:all_gather", 400, 700, thread="gloo")
        r.op("aten::add", 700, 1000)
        return r

    named = ring(recording())
    named.frame("torch/distributed/distributed_c10d.py(3000): all_gather_object", 390, 710)
    answer = ring(recording()).diagnosis(attribution=named)
    assert answer.dominant == "host-collective"
    assert answer.findings[0].lost_ns == 300_000
    assert ring(recording()).diagnosis().dominant == "exposed-communication", "nothing tells it without frames"


def exchanging(recording):
    """Return a step whose gradients another thread reduces on the host, 600 µs of it with an empty queue."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.annotation("gloo:all_reduce", 250, 920, thread="gloo")
    r.kernel("adam", 930, 1000, launched=(921, 925))
    r.samples_every(5, 20, 920, ("train.py", 12, "main"), running=0)
    return r


def test_gradients_reduced_on_the_host_are_waited_for(recording):
    r = exchanging(recording)
    assert r.booked()["host-collective"] == pytest.approx(620_000, abs=2_000)
    assert r.booked()["off-cpu"] == 1_000  # after it
    assert [p.id for p in r.prescribe("host-collective")] == ["device-backend"]
