"""What analyses are made of: the depth flow, its exponents, circuits, trends and saving."""
