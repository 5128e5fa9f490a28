"""What tests of recorded data flows share."""

from pathlib import Path

from diagnose.capture.dataflow.window import DataflowWindow

__all__ = ["line_of", "named", "only", "record_dataflow", "value"]


def record_dataflow(step, num_steps=2):
    """Call a step so many times and return what it does, as a program."""
    with DataflowWindow() as window:
        for _ in range(num_steps):
            step()
            window.end_step()
    return window.result()


def line_of(text, file):
    """Return the number of the only line of a test's file that ends with a comment."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return found


def named(flow, name, step=0):
    """Return the operators of a name in a step."""
    return [operator for operator in flow.operators if operator.step == step and operator.name == name]


def only(flow, name, step=0):
    """Return the only one."""
    (found,) = named(flow, name, step)
    return found


def value(flow, use):
    """Return the value of a use."""
    return flow.values[use.value]
