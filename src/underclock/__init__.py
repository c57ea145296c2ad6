"""Underclock: the GPU clocks at which a training step wastes no energy, kernel by kernel."""
