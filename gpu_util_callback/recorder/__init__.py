"""The recording of one training: from the callback's arguments to the recording's files.

Measurements come from `steps`, `backends`, `gpus` and `profiling`; everything written goes to
`recording`. Nothing raised in here may reach `fit`.
"""
