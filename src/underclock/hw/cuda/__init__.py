"""A training step on a real NVIDIA GPU: captured, taken apart, and its kernels run alone.

Nothing here sets anything on a GPU. PyTorch and cuda-bindings are imported where they are used.

* `driver`: the CUDA driver's calls, its errors turned into ours
* `graphs`: the nodes of a captured graph, read and launched again
* `torch_step`: a user's step warmed up and profiled; `module_paths`: what its modules are called
* `capture`: a step captured in parts; `splitting` ends one wherever the host waits for the GPU
* `script`: a training script run as it is until one of its steps can be held
* `state`: what the step changes, put back, and what it takes from data loaders, given again
* `operands`: what the step and its kernels read, and whether it is worth measuring on
* `launcher`: the `Launcher` that runs kernels, or the whole step, over and over, in company
* `round_graphs`: the graphs of a round, its company, and which launch each node serves
* `eager`: runs a step that no graph holds as it is written
* `feed`: keeps a stream fed, counts what is done, and times launches inside, while they run on
* `durations`: which launch took how long, of what a profiler saw
* `dispatched`: a step's operators as a CPU runs them
"""
