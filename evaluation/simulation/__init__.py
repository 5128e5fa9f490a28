"""A simulated machine: programs with known wastes, their true costs, and Kineto traces of their runs.

machine        a host and a GPU with drawn speeds, and what each runtime call costs
instructions   what a program is made of; the emitter that writes one
layers         operators and kernels of layers, their times from shapes and the GPU's peaks
workloads      models drawn at random: transformers, convnets, recommenders, reinforcement learning, inference
wastes         what can be planted, and which rules name it rightly
steps          a workload with its wastes, as one step's instructions for each rank
loading        batches by workers or the training thread; host_costs     sums of host work, for speed
engine         runs a program: host threads, streams, copy engines, collectives, a bounded launch queue
truth          what each waste costs: the same program run without it
dialects       how exporters of different years and vendors write the same run
kineto         a run as a Kineto file
checks         what holds for every run
cases          a case from a seed: machine, workload, wastes, dialect
scoring        answers against the truth; tables        what is printed

Nothing here imports ``diagnose``, except that ``scoring`` reads its public answer.
"""
