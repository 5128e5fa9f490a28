"""data-stall: loaders that start their workers again with each epoch. Times in µs."""

import pytest

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize("of_run", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_workers_that_are_started_with_each_epoch_are_named_where_the_loader_is_made(
    recording, run_steps, kept, of_run
):
    """Epochs of three batches: the first takes 5 ms, the others 0.5 ms, as does the call that finds no more."""
    r = recording(devices=())
    for step in range(4 if of_run else 8):
        at = 10_000 * step
        r.step(step + 1, at, at + 10_000)
        took = 500 if step % 4 else 5_000
        r.annotation(WORKERS, at, at + took)
        r.op("aten::mm", at + took, at + 10_000)
    if of_run:
        r.run = run_steps([10.0] * 30, loading=[0.5 if step % 3 else 5.0 for step in range(30)])
    line = "loader = DataLoader(data, 8, num_workers=2)"
    made = {
        "name": "DataLoader", "file": "train.py", "first": 7, "lines": [line],
        "begin": [7, 9], "end": [7, len(line)], "parameters": ["dataset", "batch_size"], "takes_any": True,
    }  # fmt: skip
    r.with_info(
        loader={"num_workers": 2, "persistent_workers": kept, "num_batches": 3, "batches_ready": 0.9, "made": made}
    )
    finding = r.find("data-stall")
    shown = (finding.title, finding.where[0].file, finding.where[0].line)
    assert (shown == ("The DataLoader starts its workers again with each epoch", "train.py", 7)) is not kept
    assert ([change.id for change in r.prescribe("data-stall")][:1] == ["keep-workers"]) is not kept
    assert finding.facts["keeps_up"] is kept
