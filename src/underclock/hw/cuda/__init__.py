"""A training step on a real NVIDIA GPU: captured, taken apart, and its kernels run alone.

Nothing here sets anything on a GPU. PyTorch and cuda-bindings are imported where they are used.

* `driver`: the CUDA driver's calls, its errors turned into ours
* `graphs`: the nodes of a captured graph, read and launched again
* `torch_step`: a user's step warmed up and profiled; `profiling`: PyTorch's profiler
* `capture`: a step captured in `parts`, one after another; `splitting` ends one wherever the host
  waits for the GPU
* `script`: a training script run as it is until one of its steps can be held
* `state`: what the step changes, put back; `batches`: what it takes from data loaders
* `operands`: what a kernel reads and writes, and whether it is worth measuring on
* `launcher`: the `Launcher` that runs kernels, or the whole step, over and over, in company;
  `round_graphs`: the graphs of a round, and which launch each node serves
* `eager`: runs a step that no graph holds as it is written; `eager_durations` times its launches
* `company`: what they run with: a hot companion, and idling
* `feed`: keeps a stream fed, and counts what is done
* `timing`: times launches inside, while they run on; `launch_durations`: which of them is which
"""
