"""What a capture notes beside its traces, as types: the script's settings, the sampler, NVML, the allocator.

Fields may be missing and unknown ones are ignored; a value of another type or outside its range is an error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from diagnose.errors import InputError
from diagnose.text.plain_text import middle

_T = TypeVar("_T")
_ONE_AT_A_TIME = threading.Lock()  # msgspec crashes where two threads meet a type for the first time at once
_WHERE = r"(?s) - at (?:`key` in )?`\$\.?(?P<field>.*)`$"
_FORM = r"(?s)str matching regex .*"
_SURROGATE = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"  # the first of a pair, as JSON writes it
_PAIR_OR_HALF = rb"(" + _SURROGATE + rb"\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
MAX_CHARS = 120  # characters of what a decoder found wrong: it may repeat a key of the file


def decode(text: bytes | str, kind: type[_T], *, source: str, remedy: str) -> _T:
    """Return the JSON text as a record of the given type; fields that the type lacks are ignored.

    Half a surrogate pair, as a path that is not UTF-8 leaves it, becomes U+FFFD.

    Raises:
        InputError: it is no JSON, or a value has another type or lies outside its range.
    """
    try:
        with _ONE_AT_A_TIME:
            return _decoded(text.encode("utf-8", "replace") if isinstance(text, str) else text, kind)
    except msgspec.ValidationError as error:
        # "its field rank is wrong (expected int >= 0)".
        message = str(error)
        found = re.search(_WHERE, message)
        what = re.sub(_FORM, "a plain name", (message[: found.start()] if found else message).replace("`", ""))
        where = f"its field {middle(found['field'], MAX_CHARS)} is wrong" if found and found["field"] else "it is wrong"
        fault = f"{where} ({middle(what[:1].lower() + what[1:], MAX_CHARS)})"
        raise InputError(f"{source} cannot be used: {fault}. {remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{source} is not valid JSON. {remedy}") from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply to be read. {remedy}") from None


def _decoded(text: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        whole = re.sub(_PAIR_OR_HALF, lambda found: found[1] or rb"\ufffd", text)
        if whole == text:
            raise
        return msgspec.json.decode(whole, type=kind)


MAX_INT = 2**62  # with room for differences and sums in 64 bits
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INT)]
Time: TypeAlias = Count  # wall clock, unix ns
# Thirty years.
Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1e3)]  # of a time; above 1 where several cores took it
FileName: TypeAlias = Annotated[str, Meta(pattern=r"^(?!\.\.?$)[^/\\\x00]*$", max_length=255)]  # within the folder
Setting: TypeAlias = bool | int | float | str | None
Amounts: TypeAlias = tuple[Amount | None, ...]

_Record = TypeVar("_Record", bound=msgspec.Struct)


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that the script saw."""

    index: Count | None = None
    uuid: str = ""
    name: str = ""
    memory_bytes: Count | None = None
    num_sms: Count | None = None
    compute_capability: tuple[int, ...] = ()
    in_use: bool | None = None


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another process that was seen on a GPU."""

    pid: Count
    memory_bytes: Count | None = None


class GpuReadings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """NVML's constants and series of one GPU; None in a series where the board did not answer."""

    index: Count | None = None
    uuid: str | None = None
    name: str | None = None
    max_sm_mhz: Amount | None = None
    power_limit_w: Amount | None = None
    max_power_limit_w: Amount | None = None  # what it can be raised to
    memory_total_bytes: Count | None = None
    other_processes: tuple[ProcessRecord, ...] = ()
    own_process_seen: bool | None = None
    time_ns: tuple[Time, ...] = ()
    utilisation: Amounts = ()
    sm_mhz: Amounts = ()
    throttle_reasons: tuple[Count | None, ...] = ()  # bits
    power_w: Amounts = ()
    temperature_c: tuple[Annotated[float, Meta(ge=-273, le=1e4)] | None, ...] = ()
    memory_used_bytes: tuple[Count | None, ...] = ()


class NvmlRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The readings of NVML, or why there are none."""

    available: bool | None = None
    reason: str = ""
    gpus: tuple[GpuReadings, ...] = ()


class SamplerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What sampling the training thread cost, and how often that thread had no core."""

    period_ms: Milliseconds | None = None
    num_samples: Count | None = None
    cost_share: Share | None = None
    ready_share: Annotated[float, Meta(ge=0, le=1)] | None = None  # of one thread's time
    method: str | None = None  # how frames were read: memory, from outside; interpreter, with its lock
    fallback: str | None = None  # why not from memory


class AllocatorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the allocator counted over the recorded windows, and its map after them."""

    retries: Count | None = None
    reserved_peak_bytes: Count | None = None
    reserved_bytes: Count | None = None
    free_bytes: Count | None = None
    capacity_bytes: Count | None = None
    segments: Count | None = None
    free_pieces_bytes: Count | None = None
    largest_free_piece_bytes: Count | None = None


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The call in the script that made an object, with the lines around it; columns count characters."""

    name: str  # what it makes
    file: str
    first: Count  # number of the first of the lines
    lines: tuple[str, ...]
    begin: tuple[Count, Count]  # line and column
    end: tuple[Count, Count]
    ends_file: bool = False
    parameters: tuple[str, ...] = ()  # of the constructor
    takes_any: bool = False
    spread: tuple[str, ...] | None = None  # keys that a ** passes; None where they are not known


class DequeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place that indexes a deque."""

    line: Count
    last: Count
    name: str
    built: Count  # line


class LoadingCounters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the workers did while steps were recorded, or the training process where there are none, of all together."""

    processes: Amount | None = None
    cpu_share: Amount | None = None  # of a core, on average
    user_ms_per_sample: Amount | None = None  # of CPU time: decoding and transforming
    system_ms_per_sample: Amount | None = None  # in the kernel: reading and copying
    disk_mb_per_s: Amount | None = None  # fetched from storage
    read_mb_per_s: Amount | None = None  # returned by reads, the page cache's included
    cached_share: Share | None = None  # of what was read: it did not come from storage
    major_faults_per_s: Amount | None = None  # pages of mapped files or swap that had to be fetched
    swapped_mb: Amount | None = None  # of these processes, swapped out at the end


class LoaderRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of the DataLoader that delivered most, and what its workers did."""

    num_workers: Count | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: Count | None = None
    batch_size: Count | None = None
    drop_last: bool | None = None
    timeout: Amount | None = None
    in_order: bool | None = None
    start_method: str | None = None
    dataset: str | None = None
    batch_bytes: Count | None = None  # of the first batch's tensors
    batch_tensors: Count | None = None
    shares_out: bool | None = None  # a method of it asks for get_worker_info
    sampler: str | None = None
    collate_fn: str | None = None
    batches_by: tuple[str, Count, Count, str] | None = None  # what makes them: file, first and last line, function
    chosen_by: tuple[tuple[str, Count, Count, str], ...] = ()  # the same of what chooses their samples: own samplers
    num_batches: Count | None = None
    comes_again: bool | None = None  # the loop over it is in another one, so that samples are loaded more than once
    batches_ready: Share | None = None  # share of those from workers that were there when they were asked for
    batches_drew: bool | None = None  # of those made in the script's process, whether any drew random numbers
    workers_busy: Share | None = None  # share of the workers' lives on a CPU
    counters: LoadingCounters = LoadingCounters()
    made: CallRecord | None = None


class OptimizerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"name": "class"}):
    """The main optimizer, and the script's others."""

    name: str | None = None
    module: str | None = None
    fused: bool | None = None
    foreach: bool | None = None
    capturable: bool | None = None
    differentiable: bool | None = None
    maximize: bool | None = None
    num_tensors: Count | None = None
    num_params: Count | None = None
    param_bytes: Count | None = None
    state_bytes: Count | None = None
    num_groups: Count | None = None
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    others: tuple[OptimizerRecord, ...] = ()
    made: CallRecord | None = None


class DdpRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of DistributedDataParallel."""

    find_unused_parameters: bool | None = None
    broadcast_buffers: bool | None = None
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    bucket_cap_mb: Amount | None = None
    made: CallRecord | None = None


class AutocastRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first autocast region that was switched on."""

    device: str = ""
    dtype: str = ""


class FlagsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The profiler's settings in each window, and the process's settings that bear on speed."""

    light: dict[str, Setting] = {}  # msgspec gives every record its own
    attribution: dict[str, Setting] = {}
    ddp: DdpRecord = DdpRecord()
    autocast: AutocastRecord = AutocastRecord()
    anomaly: CallRecord | None = None  # the script's first call that turned anomaly detection on
    matmul_precision: str | None = None
    allow_tf32: bool | None = None
    deterministic_algorithms: bool | None = None
    num_threads: Count | None = None
    bfloat16: bool | None = None  # whether the CPU has instructions for products in it
    mkl: bool | None = None  # whether it is MKL that transforms and multiplies on the CPU
    cores: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None  # that this rank can use: affinity, quotas, other ranks
    allocator: str | None = None
    cuda_launch_blocking: bool | None = None


def fitting(kind: type[_Record], values: Mapping[str, object]) -> _Record:
    """Return a record of the values that fit their field: a script's own classes may hold anything in theirs."""
    known: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in values:
            with suppress(msgspec.ValidationError):
                known[field.name] = msgspec.convert(values[field.encode_name], field.type)
    return kind(**known)


def as_facts(record: msgspec.Struct) -> dict[str, object]:
    """Return the fields that were noted, by the names that they have in the file."""
    facts: dict[str, object] = msgspec.to_builtins(record)
    return facts


class BreakRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place at which torch.compile ended a graph, since it cannot trace what is there."""

    file: str
    line: Count
    function: str = ""
    reason: str = ""  # in torch's own words
    hint: str = ""
    skips: bool = False  # no part of the function is compiled: the break is in a loop, or compiling failed


class CompilationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A compilation of a function of the run's, or of its backward pass."""

    began_ns: Time
    took_ns: Count
    id: str = ""  # that its calls have in a trace
    file: str = ""
    line: Count = 0  # its first
    function: str = ""
    version: Count = 0  # how often the function had been compiled before
    guard: str = ""  # that did not fit, with the value that it saw, in torch's own words
    at: tuple[str, Count] | None = None  # file and line of what the guard checks


class CompileCallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The script's call of torch.compile for a function, or for a module and its forward."""

    file: str
    line: Count
    name: str = ""  # of the function, or of the module's class
    functions: tuple[tuple[str, str, Count, Count], ...] = ()  # name, file, first and last line; of a module its own
    backend: str = ""  # "" for torch's own
    is_idle: bool = False  # nothing of it has been compiled
    made: CallRecord | None = None

    @property
    def text(self) -> str:
        """Return the line of the call, "" for a decorator."""
        return self.made.lines[self.made.begin[0] - self.made.first].strip() if self.made is not None else ""


class VersionsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that torch.compile compiled more than once, as a guard failed."""

    file: str
    line: Count  # its first
    function: str = ""
    num: Count = 0  # versions of it
    guards: tuple[str, ...] = ()  # that failed, the latest first
    gave_up: bool = False  # no more versions are made: calls that fit none run eagerly


class CompiledRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What torch.compile noted of the run so far."""

    breaks: tuple[BreakRecord, ...] = ()
    versions: tuple[VersionsRecord, ...] = ()
    compilations: tuple[CompilationRecord, ...] = ()  # in order of time
    calls: tuple[CompileCallRecord, ...] = ()
    stages: dict[str, Amount] = {}  # s of first compilations by who took them, in their order
    took_s: Amount = 0.0  # that compiling took, of forward and backward
    backend_s: Amount = 0.0  # of it in the backend, which generates code


class SaveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a line of the script saves; sizes are of its last file, times are sums over all of them."""

    file: str
    line: Count
    function: str = ""
    num: Count = 0  # files
    took_ns: Count = 0
    spare_ns: Count = 0  # of it for bytes that no tensor shows, as a share of the bytes
    num_bytes: Count = 0  # of all storages that the tensors lie in
    spare_bytes: Count = 0  # of them that no tensor shows
    name: str = ""  # of the tensor that shows the smallest part of its storage
    view_bytes: Count = 0  # of that tensor
    storage_bytes: Count = 0  # of its storage


class HookRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the script that registers hooks of modules again and again, and removes none."""

    file: str
    line: Count
    function: str = ""
    num: Count = 0  # that are there
    modules: Count = 0  # that have them
    steps: Count = 0  # of the run in which they were registered
    hook_file: str = ""
    hook_name: str = ""
    hook_lines: tuple[Count, Count] = (0, 0)  # of the hook's code


class ExpressionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An expression of the user's functions; times are sums over the samples that were loaded."""

    file: str
    line: Count
    function: str = ""
    text: str = ""
    inside: tuple[Count, ...] = ()  # rows of the expressions that call this one or that it is a part of
    num: Count = 0
    samples: Count = 0  # in how many it ran: of those that are collated together, their batch counts as one
    ns: Count = 0
    own_ns: Count = 0  # without the expressions inside
    what: str = ""  # type and shape of the result: "float64 (112, 112, 3)", "" for what is no array
    num_bytes: Count = 0  # of the arrays that are its results, for all samples
    is_constant: bool = False  # the same result in all samples
    is_repeated: bool = False  # the same result when the same samples were loaded again
    is_written: bool = False  # its result is changed after it was made
    used: float = 1.0  # share of its results that samples use: what they cut off need not be computed
    cut: tuple[str, Count, str] | None = None  # file, line and text of an expression that cuts them
    is_wide: bool = False  # the result is an array of 64-bit floats
    is_tensor: bool = False  # that array is a tensor
    padded_to: Count = 0  # it is the first to make rows of this length that have one number at an end, or at both


MAX_TEXT = 120  # characters of an expression that are kept


class OperandRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operand of a call of host code was, in the calls that were looked at."""

    text: str
    kind: str = ""  # its type, such as "numpy.ndarray"
    size: Count = 0  # elements, at the last look; 0 of a single one
    looks: Count = 0
    is_kept: bool = False  # few objects, or views of few arrays, that come again
    same: bool = False  # each look found the content that the object had at the one before
    same_in_step: bool = False  # the same of looks in one step
    changed: Share | None = None  # the largest share of its parts that differ between two looks; None: not known
    grows: bool = False  # it has more elements from look to look
    shape: tuple[Count, ...] = ()  # of an array, a tensor or a table
    dtype: str = ""  # of an array or a tensor
    number: int | None = None  # of an integer
    items: Count = 0  # numbers in a list, or in a list of lists
    order: str = ""  # of a table: "unsorted" if rows of one key are apart, "unsorted levels" of keys that come once


class HostCallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An expression of a hot line that calls host code, looks something up or compares."""

    file: str
    line: Count
    function: str = ""
    text: str = ""
    # Of what is called: "numpy.isin", "numpy.NpzFile[]", "builtins.list in", of what another expression makes ".max".
    name: str = ""
    num: Count = 0  # calls
    ns: Count = 0  # of all of them, without their operands' own time
    looks: Count = 0
    num_given: Count = 0  # different contents of all operands together that were seen
    operands: tuple[OperandRecord, ...] = ()


class HostResultRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function with hot lines whose result was the same in each call that was looked at, over several steps."""

    file: str
    line: Count  # of its definition
    last_line: Count
    function: str
    looks: Count = 0
    size: Count = 0  # elements of the result


class HostRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the calls of host code on the hot lines of some steps were given."""

    steps: Count = 0
    calls: tuple[HostCallRecord, ...] = ()  # the one that took most first
    same_results: tuple[HostResultRecord, ...] = ()


PlaceRecord: TypeAlias = tuple[str, Count]  # file, first line of a statement


class UnreadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statements of a loop whose results only a branch of its turn reads, or only what follows the loop."""

    chains: tuple[tuple[PlaceRecord, ...], ...]  # of which nothing else is needed, each after the calls that lead to it
    first: tuple[PlaceRecord, ...]  # of the statement that asks for them
    names: tuple[str, ...] = ()  # of the script, that they give values to
    readers: tuple[PlaceRecord, ...] = ()  # the first line of each branch that reads them; none: nothing does
    after: bool = False  # what follows the loop reads them: the last turn's
    early: bool = False  # something changes before the branch that reads them: its condition has to be tested first
    made: Count = 0  # turns in some steps in which ``first`` ran
    read: Count = 0  # of these turns, those of which the result was read
    in_steps: Count = 0  # steps in which ``first`` ran
    steps: Count = 0


class ListedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lists of numbers in the samples, of which torch's own collate makes a tensor for each place of the list."""

    file: str
    line: Count  # that hands them on
    function: str = ""
    text: str = ""  # the key of the longest, or its place in the sample
    numbers: Count = 0  # in the lists of a sample
    share: Share = 0.0  # of loading a batch that arrays in their place save


class LoadedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some batches of the training loader's, loaded again in a process of their own after the windows."""

    samples: Count = 0
    total_ns: Count = 0  # that loading them took
    dataset_size: Count = 0
    narrow: bool = False  # what is handed to the step holds no 64-bit floats
    expressions: tuple[ExpressionRecord, ...] = ()
    calls: tuple[HostCallRecord, ...] = ()  # of host code by the samples, of those expressions that take most
    listed: ListedRecord | None = None
    left_out: str = ""  # why nothing was loaded
