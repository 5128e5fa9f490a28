"""The fuzzer: seeded mutants of traces, capture folders and reports, and what must hold for every one of them.

made, folders      the inputs that are mutated, small and well formed
values             what fields are set to: numbers at the edges, hostile names
mutations, damage  structural mutations of events, damage of bytes
picking, extremes  which events are mutated, mutations that keep a trace well formed and make it impossible or huge
cases              (seed, kind, index) → files and a command line; the same on every machine
running, checks    one case in this process, and what is wrong with how it ended
worker, pool       processes that run cases under limits of time and memory
summary, command   tables, saved mutants, the command line
"""
