"""A training step on a real NVIDIA GPU: captured, taken apart, and its kernels run alone.

Nothing here sets anything on a GPU. PyTorch and cuda-bindings are imported where they are used.
"""
