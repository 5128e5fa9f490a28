"""The times by phase, module and function of a diagnosis made by hand."""

from diagnose.model.charts import CodeTime, CodeTimes

MS = 1_000_000


def code() -> CodeTimes:
    """Three phases, a model of two blocks and three functions of a step of 20 ms."""
    phases = (("loading", 8, 0), ("forward", 7, 3), ("other", 5, 5))
    block = CodeTime("GPT_0.Block_0", 3 * MS, 0.15, 3 * MS, 1.0, 1.2 * MS, 1 * MS, 2 * MS, 1)
    modules = (CodeTime("GPT_0", 1 * MS, 0.35, 7 * MS, 1.0, 3 * MS, 2 * MS, 4 * MS), block,
               block._replace(name="GPT_0.Block_1"))  # fmt: skip
    functions = (
        CodeTime("/home/ada/project/train.py:12 <module>", 5 * MS, 1.0, 20 * MS, 0.0, 8 * MS, 2 * MS, 4 * MS),
        CodeTime("/home/ada/project/train.py:31 collate_batch", 8 * MS, 0.4, 8 * MS, 1.0, 0.0, 0.0, 0.0),
        CodeTime("/home/ada/project/model.py:41 forward", 7 * MS, 0.35, 7 * MS, 1.0, 3 * MS, 2 * MS, 4 * MS),
    )
    shown = tuple(CodeTime(n, h * MS, h / 20, h * MS, None, d * MS) for n, h, d in phases)
    return CodeTimes("frames", 20 * MS, True, shown, modules, functions)
