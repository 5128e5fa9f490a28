"""Records two steps on a device of Python's own, whose tensors are computed on the host, and prints what was found.

Autograd runs the backward pass of a device on a thread of its own, where no Python function calls the operators.
"""

import json

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

from diagnose.capture.dataflow.window import DataflowWindow
from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.placement import host_round_trips

backend_registration._setup_privateuseone_for_python_backend("stub")
held = {}  # by storage: the storage, which has no memory, and the tensor of the host


def to_device(tensor):
    made = torch._C._acc.create_empty_tensor(tuple(tensor.shape), tensor.dtype)
    held[made.untyped_storage()._cdata] = made.untyped_storage(), tensor
    return made


def compute(operator, *args, **kwargs):
    known = {}

    def to_host(each):
        if isinstance(each, torch.Tensor) and each.device.type == "stub":
            tensor = held[each.untyped_storage()._cdata][1]
            known[id(tensor)] = each
            return tensor
        return torch.device("cpu") if isinstance(each, torch.device) else each

    args_there, kwargs_there = tree_map(to_host, (args, kwargs))
    if operator._schema.name == "aten::_copy_from":
        args_there[1].copy_(args_there[0])
        return args[1]
    result = operator(*args_there, **kwargs_there)

    def from_host(each):
        is_new = isinstance(each, torch.Tensor) and id(each) not in known
        return to_device(each) if is_new else known.get(id(each), each)

    return tree_map(from_host, result)


library = torch.library.Library("_", "IMPL")
library.fallback(compute, "PrivateUse1")
inputs = torch.ones(4, 4).to("stub")
weight = torch.ones(4, 2).to("stub").requires_grad_()


def step():
    hidden = (inputs @ weight).relu()
    order = hidden.detach().cpu().sort(0).values  # back
    there = order.to("stub")  # and forth
    noise = torch.rand(4, 1).to("stub")  # made on the host
    (hidden * there * noise).sum().backward()
    weight.grad = None


step()
with DataflowWindow() as window:
    for _ in range(2):
        step()
        window.end_step()
flow = window.result()
last = [one for one in flow.operators if one.step == 1]
print(
    json.dumps(
        {
            "left_out": flow.left_out,
            "devices": sorted({value.device for value in flow.values}),
            "looked_at": sorted({value.device for value in flow.values if value.fingerprint}),
            "threads": len({one.thread for one in last}),
            "backward": sorted({one.place.line for one in last if one.name == "aten::mm" and one.place}),
            "found": [(one.kind, one.value_line.line, one.use_line.line) for one in host_round_trips(graph_of(flow))],
        }
    )
)
