"""Which tests of integrations can be run: IPython is not among the requirements of development."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("IPython") else ["test_notebook.py"]
