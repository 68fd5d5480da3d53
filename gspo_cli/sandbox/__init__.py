"""Runs untrusted programs.

A `Sandbox` starts a Python program with files of its own and two pipes; what the program is and what its output means
is the grader's business. `choose.open_sandbox` gives bubblewrap, else sandlock, else an error; never silently nothing.

What bubblewrap enforces: own user, process, network, IPC and host-name spaces, no capabilities, a read-only system with
one interpreter, an empty environment, a scratch folder in memory (64 MiB), and per process 2 GiB of address space, a
number of processes, open files, file size and CPU time. The whole process space ends with the program.

Not covered: faults of the kernel, side channels, one candidate slowing another, the memory of several processes of one
candidate together (the limit is per process; the kernel is asked to end candidates first when memory runs out), and the
number of processes where we run as root without a writable pids cgroup and without another user to run as, which
the summary then says (`process_limit: false`).
"""
