"""Campaigns: what is wanted next, the windows that answer it, and the file they go to."""
