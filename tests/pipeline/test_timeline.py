"""What the charts draw of one step."""

from diagnose.pipeline.timeline import Drawn, picture


def spans(p, *categories):
    return [(s.lane, s.start_ns // 1000, s.end_ns // 1000, s.name) for s in p.spans if s.category in categories]


def test_the_step_nearest_to_the_median_is_drawn(recording):
    r = recording()
    at = 0
    for number, length in enumerate((1000, 1200, 5000)):
        r.step(number, at, at + length)
        at += length
    r.kernel("gemm", 0, 7200, launched=(-20, -15))
    p = picture(r.tables())
    assert (p.step, p.step_ns) == (1, 1_200_000)


def test_bars_by_lane_cut_at_the_step(late):
    late.copy("Memcpy HtoD (Pinned -> Device)", 750, 1200, stream=20, launched=(100, 105))
    late.kernel("ncclDevKernel_AllReduce", 800, 900, stream=30, launched=(110, 115))
    p = picture(late.tables())
    assert p.step_ns == 1_200_000, "up to the end of what the last step launched"
    assert spans(p, "compute") == [("GPU 0 stream 7", 0, 300, "gemm"), ("GPU 0 stream 7", 700, 1000, "relu")]
    assert spans(p, "copy") == [("GPU 0 stream 20", 750, 1200, "Memcpy HtoD (Pinned -> Device)")]
    assert spans(p, "communication") == [("GPU 0 stream 30", 800, 900, "ncclDevKernel_AllReduce")]
    assert spans(p, "operator") == [("host 100 +1", 0, 200, "aten::mm"), ("host 100 +1", 690, 1000, "aten::relu")]
    assert ("host 100", 0, 1000, "ProfilerStep#1") in spans(p, "annotation")
    assert p.num_spans_left_out == 0


def test_gaps_carry_their_cause_and_what_the_thread_did(late):
    p = picture(late.tables())
    assert [(g.start_ns, g.end_ns, g.cause, g.detail) for g in p.gaps] == [
        (300_000, 690_000, "python-stall", "between operators"),
        (690_000, 700_000, "launch-bound", "aten::relu"),
    ]


def test_depth_is_a_step_function_from_the_begin_of_the_step(late):
    assert picture(late.tables()).depth == ((0, 1), (300_000, 0), (690_000, 1))


def test_without_a_device_there_is_no_depth(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    p = picture(r.tables())
    assert p.depth == ()
    assert [(g.start_ns, g.cause) for g in p.gaps] == [(0, "operators"), (600_000, "python-stall")]


def test_beyond_a_limit_the_longest_bars_are_kept_and_the_rest_counted(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(10):
        r.kernel(f"k{i}", 100 * i, 100 * i + i + 1)
    p = picture(r.tables(), most=Drawn(spans=3))
    assert [name for *_, name in spans(p, "compute", "annotation")] == ["k8", "k9", "ProfilerStep#1"]
    assert p.num_spans_left_out == 8


def test_every_bar_of_a_long_step_is_there_and_knows_its_launch(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(100):
        r.kernel("k", 100 + 8 * i, 104 + 8 * i, launched=(8 * i, 8 * i + 2))
    p = picture(r.tables())
    assert len(p.spans) == 201
    tasks = [i for i, s in enumerate(p.spans) if s.category == "compute"]
    calls = [int(p.spans.launch[i]) for i in tasks]
    assert [(p.spans[i].category, p.spans[i].start_ns) for i in calls] == [("runtime", 8000 * i) for i in range(100)]


def test_streams_and_threads_have_names(late):
    late.kernel("ncclDevKernel_AllReduce", 800, 900, stream=30, launched=(110, 115))
    late.copy("Memcpy HtoD (Pinned -> Device)", 750, 1200, stream=20, launched=(100, 105))
    titles = picture(late.tables()).titles
    assert titles["GPU 0 stream 30"] == "GPU 0 stream 30 · communication"
    assert titles["GPU 0 stream 20"] == "GPU 0 stream 20 · copies"
    assert titles["host 100"] == "training thread · main 100"


def test_device_tasks_alone_have_no_thread_to_name(recording):
    r = recording()
    r.kernel("gemm", 0, 100)
    r.kernel("gemm", 150, 300)
    assert not [lane for lane in picture(r.tables()).titles if lane.startswith("host")]


def test_gaps_and_depths_have_limits_too(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(10):
        r.kernel("k", 100 * i, 100 * i + 90 - i)  # pauses of 10, 11, … 19 µs
    p = picture(r.tables(), most=Drawn(gaps=4, depths=5))
    assert [(g.end_ns - g.start_ns) // 1000 for g in p.gaps] == [16, 17, 18, 19]
    assert len(p.depth) == 5
    assert p.depth[0] == (0, 1)
    assert {depth for _, depth in p.depth} == {1}, "the deepest of what one point stands for"


def test_nesting_has_a_limit(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    for depth in range(6):
        r.op(f"op{depth}", depth, 1000 - depth)
    assert [name for *_, name in spans(picture(r.tables(), most=Drawn(layers=4)), "operator")] == ["op0", "op1", "op2"]


def test_each_step_has_its_own_number_and_its_parts(recording):
    r = recording()
    for number, at in ((7, 0), (8, 1000)):
        r.step(number, at, at + 1000)
        r.kernel("gemm", at, at + 400, launched=(at, at + 5))
    parts = [(s.number, s.length_ns, s.parts["busy"], sum(s.parts.values())) for s in picture(r.tables()).steps]
    assert parts == [(7, 1_000_000, 400_000, 1_000_000), (8, 1_000_000, 400_000, 1_000_000)]


def test_kernels_are_listed_all_and_by_operator(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(15):
        r.op(f"aten::op{i % 2}", 10 * i, 10 * i + 8)
        r.kernel(f"k{i}", 300 + 10 * i, 305 + 10 * i, launched=(10 * i + 1, 10 * i + 3))
    p = picture(r.tables())
    assert len(p.kernels) == 15
    assert [(o.name, o.calls_per_step, o.time_ns) for o in p.by_operator] == [
        ("aten::op0", 8, 40_000), ("aten::op1", 7, 35_000),
    ]  # fmt: skip
