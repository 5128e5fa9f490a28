"""Rules that are not applied without a device, each with the reason: all others look at the host's operators too."""

from diagnose import analyzers

COPIES = "there is no copy to or from a device"
DRIVER = "the driver's calls are of a device"
KERNELS = "it judges kernels by what the device could reach"
MEMORY = "it is about the device's memory"
MOVED = "it knows kernels by their names; of a host the data flow shows what they do, to"
QUEUE = "without a device nothing is queued that the host could wait for, or launch late"
STATE = "it is a state of the device"
DEVICE_ONLY = {
    "allocator-stall": DRIVER,
    "at-roofline": KERNELS,
    "dense-embedding-gradients": f"{MOVED} work-on-nothing",
    "device-contention": STATE,
    "exposed-copy": COPIES,
    "full-precision-matmul": "a CPU's products have no units for shorter formats that a trace shows",
    "host-compute": "without a device all operators compute on the host",
    "host-sync": QUEUE,
    "kernel-latency": QUEUE,
    "layout-copy": "it knows kernels that convert, by their names",
    "memory-fragmentation": MEMORY,
    "memory-headroom": MEMORY,
    "memory-pressure": MEMORY,
    "memset-traffic": "it knows kernels that fill, by their names",
    "misaligned-matmul": KERNELS,
    "pcie-bound": COPIES,
    "scatter-atomics": "atomic additions of a device's threads",
    "shared-device": STATE,
    "slow-kernel": KERNELS,
    "small-grid": KERNELS,
    "stream-dependency": QUEUE,
    "throttled": STATE,
    "unexplained-device": "it names idle time of a device",
    "unfused-attention": f"{MOVED} unfused",
    "unfused-elementwise": "what fusing pointwise operators saves was calibrated on a device's bandwidth",
}
OF_ANY_RECORDING = ("trust", "run", "rank")  # these kinds do not ask for a device


def test_rules_that_need_a_device_are_known_with_the_reason():
    found = {
        rule.META.id
        for rule in analyzers.RULES
        if rule.META.host_order is None and rule.META.kind not in OF_ANY_RECORDING
    }
    assert found == set(DEVICE_ONLY)
