"""What is written when runs of special kinds have ended."""
