"""Tiles: any stretch of a recording, at any zoom, as a bounded number of buckets."""
