"""What a choice makes of a step: cap, heat, overlap, cost table."""
