"""`diagnose monitor` through a module that answers as a driver would."""

import csv
import io
import json
import resource
import time
from types import SimpleNamespace

import pytest

from diagnose.errors import OutputError, UsageError
from diagnose.monitor import MonitorRequest, watch
from diagnose.monitor.record import percentile


class NotSupportedError(Exception):
    pass


class FakeDriver:
    """Two boards of which the second has no PCIe counters; utilisation grows by 10 % with each reading."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, reasons=0x4, *, sums=True):
        self.reasons, self.sums = reasons, sums
        self.read = [0, 0]
        self.shut = 0

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.shut += 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=2_000_000_000, total=141_000_000_000)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        second = None if handle else 300_000_000
        return [SimpleNamespace(pid=1, usedGpuMemory=1_200_000_000), SimpleNamespace(pid=2, usedGpuMemory=second)]

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.read[handle] += 1
        return SimpleNamespace(gpu=10 * self.read[handle], memory=1)

    def nvmlDeviceGetClockInfo(self, handle, clock):
        return {1: 1500, 2: 3200}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons

    def nvmlDeviceGetPcieThroughput(self, handle, which):
        if handle == 1:
            raise NotSupportedError
        return 2_000 if which == self.NVML_PCIE_UTIL_TX_BYTES else 5_000

    def nvmlDeviceGetFieldValues(self, handle, fields):
        """Answer with link 0 where no scope is named, as NVML does; one of three links has no receiving counter."""
        return [self._counter(handle, *(field if isinstance(field, tuple) else (field, 0))) for field in fields]

    def _counter(self, handle, field, scope):
        counts = {0: 250_000, 1: 250_000, 2: 500_000}
        if self.sums:
            counts[0xFFFFFFFF] = 1_000_000
        has = scope in counts and field == 138
        count = counts.get(scope, 0) * self.read[handle]
        return SimpleNamespace(nvmlReturn=0 if has else 3, value=SimpleNamespace(ullVal=count))

    def __getattr__(self, name):
        def ask(*_arguments):
            raise NotSupportedError

        return ask


class Clock:
    """Moves when somebody sleeps, and by nothing else."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    for name, read in {"sleep": clock.sleep, "monotonic": clock.monotonic, "time": clock.monotonic}.items():
        monkeypatch.setattr(time, name, read)
    return clock


def request(**changes):
    return MonitorRequest(**{"interval": 0.05, "seconds": 0.17} | changes)


@pytest.mark.parametrize("sums", [True, False])  # older drivers know single links only
def test_every_reading_is_a_row(tmp_path, capsys, sums):
    path = tmp_path / "gpus.csv"
    driver = FakeDriver(sums=sums)
    assert watch(request(csv_file=str(path)), driver) == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert [row["gpu"] for row in rows] == ["0", "1"] * 4  # at 0, 50, 100 and 150 of 170 ms
    assert [row["kernel_running_percent"] for row in rows[::2]] == ["10", "20", "30", "40"]
    first, third = rows[0], rows[2]
    assert (first["uuid"], first["name"], first["memory_used_mb"]) == ("GPU-0", "NVIDIA H200", "2000")
    assert (first["process_memory_mb"], first["processes"], rows[1]["process_memory_mb"]) == ("1500", "2", "")
    assert (first["pcie_to_host_mb_s"], first["pcie_from_host_mb_s"], rows[1]["pcie_to_host_mb_s"]) == ("2", "5", "")
    assert first["nvlink_sent_mb_s"] == ""  # the first reading has none before it
    assert float(third["nvlink_sent_mb_s"]) == pytest.approx(1024 / 0.05)
    assert third["nvlink_received_mb_s"] == ""
    assert first["slowed_by"] == "the power limit"
    assert driver.shut == 1
    told = capsys.readouterr().out
    assert "p50" in told
    assert "slowed in 100 %" in told
    assert all(len(line) <= 100 for line in told.splitlines())


def test_json_holds_series_and_percentiles(capsys):
    assert watch(request(json_file="-", gpus=(1,)), FakeDriver(reasons=0)) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    (gpu,) = told["gpus"]
    series = gpu["series"]["kernel_running_percent"]
    assert (gpu["index"], gpu["memory_mb"], gpu["slowed_share"]) == (1, 141_000, 0)
    assert series == [10, 20, 30, 40]
    found = gpu["percentiles"]["kernel_running_percent"]
    assert (found["min"], found["max"], found["p50"]) == (10, 40, 25)
    assert "temperature_c" not in gpu["percentiles"]
    assert "p95" in captured.err


def test_a_file_holds_the_result_in_the_format_of_its_suffix(tmp_path, capsys):
    assert watch(request(output=str(tmp_path / "r.json"), gpus=(1,)), FakeDriver()) == 0
    assert json.loads((tmp_path / "r.json").read_text())["gpus"][0]["index"] == 1
    assert watch(request(output=str(tmp_path / "r.txt"), gpus=(1,)), FakeDriver()) == 0
    assert "p95" in (tmp_path / "r.txt").read_text()
    assert "p95" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"must end in \.html, \.json or \.txt"):
        watch(request(output="r.md"), FakeDriver())
    with pytest.raises(UsageError, match=r"Invalid --html"):
        watch(request(html="r.json"), FakeDriver())
    with pytest.raises(OutputError, match="exists already"):
        watch(request(output=str(tmp_path / "r.txt")), FakeDriver())


def test_a_page_shows_each_gpu_over_time(tmp_path):
    assert watch(request(html=str(tmp_path / "r.html"), gpus=(1,)), FakeDriver()) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h1>1 GPU, 4 readings, one every 0.05 s</h1>" in page
    assert page.count("<polygon ") == page.count('<th scope="row">')  # a track for each reading
    assert "Kernel running, %" in page
    assert "<script" not in page


def test_csv_to_standard_output_leaves_the_table_to_the_other(capsys):
    assert watch(request(csv_file="-"), FakeDriver()) == 0
    captured = capsys.readouterr()
    assert len(list(csv.DictReader(io.StringIO(captured.out)))) == 8
    assert "p95" in captured.err


def test_control_c_ends_it_with_a_summary(monkeypatch, capsys):
    def interrupted(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    assert watch(MonitorRequest(), FakeDriver()) == 0
    assert "1 readings" in capsys.readouterr().out


def test_without_a_driver_one_line_and_no_failure(capsys):
    class NoDriver(FakeDriver):
        def nvmlInit(self):
            raise NotSupportedError("Driver Not Loaded")

    assert watch(MonitorRequest(), NoDriver()) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "diagnose: no NVIDIA driver responds here (Driver Not Loaded), so there is nothing to watch.\n"
    )


def test_without_a_driver_every_file_is_valid_and_empty(tmp_path, capsys):
    class Absent:
        def nvmlInit(self):
            raise NotSupportedError("Driver Not Loaded")

    files = {name: str(tmp_path / name) for name in ("r.csv", "r.json")}
    assert watch(request(csv_file=files["r.csv"], output=files["r.json"], json_file="-"), Absent()) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["gpus"], "Driver Not Loaded" in shown["note"]) == ([], True)
    assert json.loads((tmp_path / "r.json").read_text()) == shown
    assert (tmp_path / "r.csv").read_text().startswith("time_utc,")
    assert watch(request(output=str(tmp_path / "r.txt")), Absent()) == 0
    assert "nothing to watch" in (tmp_path / "r.txt").read_text()


def test_a_driver_without_a_gpu(capsys):
    class Empty(FakeDriver):
        def nvmlDeviceGetCount(self):
            return 0

    assert watch(MonitorRequest(), Empty()) == 0
    assert "has no GPU" in capsys.readouterr().err


def test_wrong_requests(tmp_path):
    with pytest.raises(UsageError, match="There is no GPU 2; the driver has 2"):
        watch(request(gpus=(0, 2)), driver := FakeDriver())
    assert driver.shut == 1
    with pytest.raises(UsageError, match="standard output"):
        watch(request(csv_file="-", json_file="-"), FakeDriver())
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        watch(request(csv_file=str(tmp_path / "there.csv")), FakeDriver())
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_percentiles_lie_between():
    assert [percentile([1, 2, 3, 4, 5], p) for p in (0, 5, 50, 100)] == [1, 1.2, 3, 5]
    assert percentile([7], 95) == 7


def test_a_full_disk_ends_the_readings_with_whole_rows_and_a_summary(tmp_path, capsys):
    path, limits = tmp_path / "gpus.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"gpus.csv cannot be written: File too large."):
            watch(MonitorRequest(interval=0.05, csv_file=str(path)), FakeDriver())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert lines[-1].endswith("\n")
    assert len({line.count(",") for line in lines}) == 1
    assert "p50" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["gpus.csv"]


def test_two_outputs_are_two_new_files(tmp_path):
    both = str(tmp_path / "gpus.txt")
    with pytest.raises(UsageError, match="both name"):
        watch(request(csv_file=both, json_file=both), FakeDriver())
    for force in (False, True):
        assert watch(request(csv_file=both, force=force), FakeDriver()) == 0
    with pytest.raises(OutputError, match="exists already"):
        watch(request(json_file=both), FakeDriver())
