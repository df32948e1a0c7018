"""Two versions of the code over one corpus of recordings and traces."""
