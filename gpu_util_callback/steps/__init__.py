"""The training thread's side: when each batch was requested and delivered, and its step ended.

Everything here runs on the training thread or turns its clock readings into rows. Needs numpy and
the standard library only; knows no framework, no recording and no GPU.
"""
