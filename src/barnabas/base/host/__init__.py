"""The machine: disk, file descriptors, the parent process, the process title, systemd."""
