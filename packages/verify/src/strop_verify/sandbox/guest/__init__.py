"""What runs inside the sandbox, or forks it: standard library only, imported by a bare interpreter.

The trusted process imports `wire` from here too; all else runs in the fork server and its children.
"""
