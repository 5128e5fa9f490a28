"""Which repetitions part a recording without marks of the profiler into steps."""


def steps(r):
    return r.tables().steps


def repeated(recording, ends, mark="Optimizer.step#SGD.step"):
    """Return a recording without marks of the profiler: a kernel and another mark before each end, µs."""
    r = recording()
    r.kernel("gemm", 12, 14, launched=(10, 11))
    for end in ends:
        r.kernel("gemm", end - 60, end - 10, launched=(end - 80, end - 75))
        r.annotation(mark, end - 8, end)
    return r


def test_ends_of_the_optimizer_s_steps_part_an_unmarked_recording(recording):
    found = steps(repeated(recording, [100, 200, 300, 400]))
    assert (found.start.tolist(), found.end.tolist()) == (
        [10_000, 100_000, 200_000, 300_000],
        [100_000, 200_000, 300_000, 400_000],
    )
    assert (found.marked, found.found_by, found.num) == (True, "optimizer", 4)
    assert [note.text for note in found.notes] == [
        "The trace has no step marks of the profiler: its steps are parted by 4 × Optimizer.step#SGD.step."
    ]


def test_a_cold_first_repetition_is_left_out_unless_it_is_most_of_the_recording(recording):
    found = steps(repeated(recording, [400, 500, 600, 700, 800, 900]))
    assert (found.num, found.window) == (5, (400_000, 900_000))
    assert "The first step was left out: many times longer than the later ones." in [n.text for n in found.notes]
    assert not steps(repeated(recording, [2000, 2100, 2200, 2300, 2400])).marked


def test_a_device_that_works_on_long_after_the_host_leaves_the_steps_as_they_are(recording):
    r = repeated(recording, [100, 200, 300, 400])
    r.kernel("conv", 400, 5000, launched=(330, 335))
    assert (steps(r).found_by, steps(r).num, steps(r).window_end) == ("optimizer", 4, 5_000_000)


def test_fetches_far_and_near_in_turn_part_steps_that_launch_alike(recording):
    r = recording()
    for at, wait in ((0, 5), (40, 900), (1040, 5), (1080, 900), (2080, 5), (2120, 900)):
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + wait)
        r.kernel("gemm", at + wait + 12, at + wait + 20, launched=(at + wait + 8, at + wait + 10))
    found = steps(r)
    assert (found.found_by, found.num, found.window_start) == ("dataloader", 6, 0)


def test_two_models_of_one_loader_are_updated_in_one_step(recording):
    r = repeated(recording, [100, 150, 200, 250, 300, 350, 400, 450])
    for start in (15, 150, 250, 350):
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 5)
    assert (steps(r).found_by, steps(r).num) == ("dataloader", 4)


def test_updates_layer_by_layer_part_no_steps(recording):
    r = repeated(recording, [1000 * i + end for i in range(4) for end in (900, 902, 904, 906, 908)])
    assert not steps(r).marked


def test_an_annotation_of_the_program_s_own_parts_steps_where_it_is_regular(recording):
    assert steps(repeated(recording, [100, 200, 300, 400], "execute_model")).found_by == "annotation"
    assert not steps(repeated(recording, [100, 150, 400, 410], "execute_model")).marked
    assert not steps(repeated(recording, [100, 200, 300, 400], "Torch-Compiled Region: 0/0")).marked
    assert not steps(repeated(recording, [100, 200], "execute_model")).marked


def test_repetitions_without_device_work_part_no_steps(recording):
    r = recording()
    for i in range(8):
        r.kernel("gemm", 10 + 20 * i, 20 + 20 * i, launched=(1 + 20 * i, 2 + 20 * i))
    for i in range(8):
        r.annotation("postprocess", 170 + 60 * i, 220 + 60 * i)
    r.kernel("last", 650, 660, launched=(640, 645))
    assert not steps(r).marked


def test_annotations_that_count_up_part_steps_and_those_that_count_again_do_not(recording):
    r = recording()
    r.kernel("gemm", 12, 14, launched=(10, 11))
    for i in range(4):
        r.kernel("gemm", 100 * i + 40, 100 * i + 90, launched=(100 * i + 20, 100 * i + 25))
        r.annotation(f"epoch 1 iteration {i + 7}", 100 * i + 15, 100 * i + 95)
    assert (steps(r).found_by, steps(r).num) == ("annotation", 4)
    again = recording()
    for i in range(8):
        again.kernel("gemm", 100 * i + 40, 100 * i + 90, launched=(100 * i + 20, 100 * i + 25))
        again.annotation(f"layer {i % 4}", 100 * i + 15, 100 * i + 95)
    assert steps(again).num < 8
