"""All text that people read, in one list."""
