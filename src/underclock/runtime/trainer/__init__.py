"""What runs in the training process: the standard library and ctypes alone, but for `sites`.

* `page`: the mark page, which controller and trainer both have open; `streams`: who writes a mark
* `sites`: where a plan's marks go; `marks`: hooks that put them into a live PyTorch step
* `marking`: how a training process begins; `inject/`: how one begins that knows nothing of it
* `notes`: what a server says of its steps; `kept_files`: files set aside for a look
"""
