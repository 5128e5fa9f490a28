"""When things end in a replay, µs."""

from diagnose.replay import simulate


def ends(graph, name, t):
    """Return when the tasks of a name end in a replay, µs."""
    rows = [i for i in range(len(graph)) if graph.is_task[i] and t.name(int(graph.row[i])) == name]
    return (simulate(graph).end[rows] / 1000).tolist()


def marks(graph):
    return (simulate(graph).end[graph.marks] / 1000).tolist()
