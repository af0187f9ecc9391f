"""Families of checkpoints by their `model_type`, each a file: settings both ways, and one table of
which tensor is which, read in both directions."""
