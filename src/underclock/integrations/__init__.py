"""Ways into other people's training loops: one file a framework.

Each stands on what users have themselves: ``underclock.applied``, and what it gives a block. No
framework is imported here; one that the user has imported gives its class, so that its trainer
takes ours for one of its own.
"""
