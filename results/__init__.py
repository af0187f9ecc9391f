"""Records of the comparisons that pages quote, and what makes the pages from them."""
