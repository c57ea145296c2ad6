"""Pure maths: samples in, costs and choices out. No clock, disk, device or hidden randomness."""
