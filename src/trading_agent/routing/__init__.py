"""Which backend answers a turn, and how a backend runs one."""
