"""What runs saved: a JSON line for each run, in the user's own file, and sums of those lines.

Conductors append (`store`), ``underclock saved`` adds up (`entries`).
"""
