"""What a sampled line of loading does, by its text, and whether it holds Python's lock."""

from dataclasses import replace

import pytest

from diagnose.analyzers.common.sample_work import SampledLine, holds_lock, sample_work
from diagnose.pipeline.rank import analyze_rank


@pytest.mark.parametrize(
    ("text", "function", "work", "locked"),
    [
        ('image = Image.open(self.paths[i]).convert("RGB")', "__getitem__", "image", False),
        ("row = self.table.iloc[i]", "__getitem__", "table", True),
        ("row = json.loads(line)", "__iter__", "parsing", True),
        ("words = text.lower().split()", "__getitem__", "text", True),
        ("ids = [ord(c) % 97 for c in self.texts[i]]", "__getitem__", "text", True),
        ("for value in row:", "__getitem__", "loop", True),
        ("total = sum(int(v) for v in row)", "<genexpr>", "loop", True),
        ("return [VOCABULARY[c] for c in text]", "__getitem__", "loop", True),
        ("rows = [np.fft.rfft(row) for row in signal]", "__getitem__", "loop", False),
        ("scaled = [(frame - mean) / std for frame in frames]", "__getitem__", "loop", False),
        ("image = self.transform(image)", "__getitem__", "", False),
        ("left, right = torch.split(x, 2)", "__getitem__", "", False),
        ("for path in self.paths:", "__iter__", "", True),
        ("for chunk in reader.iter_batches():", "__iter__", "", False),
        ("", "__getitem__", "", False),
    ],
)
def test_the_text_of_a_line_shows_its_work(text, function, work, locked):
    line = SampledLine(text, function)
    assert (sample_work(line), holds_lock(line)) == (work, locked)


def test_a_line_of_a_loop_is_known_by_the_loop_around_it():
    assert sample_work(SampledLine("out[i] = row[i] * scale[i]", "__getitem__", in_loop=True)) == "loop"
    assert not holds_lock(SampledLine("out[i] = row[i] * scale[i]", "__getitem__", in_loop=True))  # of arrays perhaps
    assert holds_lock(SampledLine("total += int(row[i])", "__getitem__", in_loop=True))
    assert not sample_work(SampledLine("yield self.parse(line)", "__iter__", in_loop=True))


@pytest.mark.parametrize(
    ("text", "heads", "locked"),
    [
        ("t += k * i % 7", ("for k in range(20_000):",), True),
        ("total = total * 31 + k", ("for k in range(n):",), False),  # a plain assignment: total may be an array
        ("total += k * k - 1", ("for row in rows:", "for k, _ in enumerate(row):"), True),
        ("t += k * i % 7", ("for k, v in enumerate(values):",), True),
        ("t += k * i % 7", ("for k in rows:",), False),
        ("t += k * frames", ("for k in range(8):",), False),
        ("t += frames[k] * k", ("for k in range(8):",), False),
        ("t += k * i if k", ("for k in range(8):",), False),
    ],
)
def test_arithmetic_of_a_loops_counter_is_pythons_own(text, heads, locked):
    assert holds_lock(SampledLine(text, "__getitem__", in_loop=True, heads=heads)) is locked


def test_the_order_that_torch_draws_is_no_draw_of_a_sample(recording):
    r = recording(devices=())
    r.with_info(flags={"cores": 16, "num_threads": 2}, loader={"dataset": "Rows", "num_workers": 0, "batch_size": 8})
    r.step(1, 0, 1000)
    r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 800)
    r.op("aten::mm", 800, 1000)
    order = ("/env/lib/python3.11/site-packages/torch/utils/data/sampler.py", 182, "__iter__")
    r.lines = {("data.py", 31): "row = smoothed(row)", order[:2]: "yield from torch.randperm(n).tolist()"}
    for i in range(16):
        r.sample(20 + 48 * i, ("data.py", 31, "__getitem__") if i % 4 else order)
    prescribed = {p.id: p for p in analyze_rank(r.capture()).prescriptions}
    assert "sampler.py" not in prescribed["cheaper-sample"].after
    assert prescribed["load-in-workers"].safety.startswith("same numbers")


@pytest.mark.parametrize(("seeded", "draws"), [({}, True), ({"data.py": (20,)}, False)])
def test_a_generator_that_each_sample_seeds_is_no_random_draw(recording, seeded, draws):
    r = recording(devices=())
    r.with_info(flags={"cores": 16, "num_threads": 2}, loader={"dataset": "Rows", "num_workers": 0, "batch_size": 8})
    r.step(1, 0, 1000)
    r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 800)
    r.op("aten::mm", 800, 1000)
    r.lines = {("data.py", 31): "row = smoothed(row)", ("data.py", 20): "rng = np.random.default_rng(self.seeds[i])"}
    for i in range(16):
        r.sample(20 + 48 * i, ("data.py", 31 if i % 4 else 20, "__getitem__"))
    prescribed = {p.id: p for p in analyze_rank(replace(r.capture(), seeded=seeded)).prescriptions}
    assert prescribed["load-in-workers"].safety.startswith("may change the numbers: samples draw") is draws
