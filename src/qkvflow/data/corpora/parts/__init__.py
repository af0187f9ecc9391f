"""What corpora are made of: shares and symbols."""
