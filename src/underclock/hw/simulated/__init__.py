"""A GPU that exists only as physics, behind the same NVML calls as a real one."""
