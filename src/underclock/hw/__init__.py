"""The only package that talks to devices, real or simulated."""
