"""Which clocks to hold: strategies side by side, under a time budget kept with confidence."""
