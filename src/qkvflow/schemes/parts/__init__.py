"""What schemes are made of: the depth grid, and the scan over it with rematerialisation."""
