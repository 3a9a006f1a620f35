"""Models that are asked without a session of their own."""
