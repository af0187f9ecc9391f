"""Optimisers, a file each: a factory registered with `@OPTIMISERS.register(name)`."""
