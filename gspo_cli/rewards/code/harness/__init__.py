"""What runs inside the sandbox beside the program. It never holds an expected output; nothing here decides a verdict.

These files are copied into the sandbox, so they use the standard library and each other only, and stay small: they are
compiled anew for every program.
"""
