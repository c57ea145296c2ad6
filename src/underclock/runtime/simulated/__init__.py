"""What conductors do, on the time of virtual GPUs."""
