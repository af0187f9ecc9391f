"""Experiments: a plan of models and seeds, the runs it makes, and statistics on their records."""
