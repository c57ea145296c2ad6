"""What other clocks would save, told from samples at auto clocks alone."""
