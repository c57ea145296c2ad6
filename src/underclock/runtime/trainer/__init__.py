"""What runs in the training process: the standard library and ctypes alone.

* `page`: the page of marks, which conductor and trainer both map
* `streams`: who writes a mark; `served_stream`: the stream of a simulated GPU that a process serves
* `places`: where a plan's marks go; `marks`: hooks that put them into a live PyTorch step
* `marking`: how a training process begins; `inject/`: how one begins that knows nothing of it
"""
