"""What to do, decided purely: facts in, actions and status out. No I/O, no clock, no randomness."""
