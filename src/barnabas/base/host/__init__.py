"""The machine below: disk, file descriptors, the parent process, the title of a process, systemd."""
