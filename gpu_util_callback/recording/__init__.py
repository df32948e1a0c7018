"""The recording: columns, segments and pyramid on disk; a writer and a reader."""
