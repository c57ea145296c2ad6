"""The constants of a GPU model, fitted to a measured sweep; the simulator runs on them."""
