"""Where a step ends: hooks into torch, the source of steps, its period, convergence of step times."""
