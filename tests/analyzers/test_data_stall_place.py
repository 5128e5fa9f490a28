"""data-stall: the line that a wait for batches is named by. Times in µs."""


def test_the_line_of_the_evidence_stands_first_if_no_sampled_line_has_a_fifth_of_the_waits(recording):
    r = recording(devices=())
    r.with_info(flags={"cores": 2, "num_threads": 2}, loader={"dataset": "Rows", "num_workers": 0, "batch_size": 8})
    r.step(1, 0, 1000)
    r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 800)
    r.op("aten::mm", 800, 1000)
    for i, line in enumerate((*range(30, 37), *range(30, 38), 33)):
        r.sample(20 + 48 * i, ("data.py", line, "__getitem__"), running=1)
    finding = r.find("data-stall")
    assert finding.facts["slow_line"]["line"] == 33
    assert (finding.where[0].file, finding.where[0].line) == ("data.py", 33)
