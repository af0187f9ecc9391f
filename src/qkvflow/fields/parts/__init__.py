"""What fields are made of: features of depth, gates and weighted sums."""
